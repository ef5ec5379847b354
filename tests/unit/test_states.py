"""Caches on disk: native code is given none that was made for another model or is not whole, and they stay within their limit."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tokencli.errors import TokencliError
from tokencli.world.states import Found, States

HERE = {"model": "tiny", "quant": "Q8_0", "template": "ab12", "library": "0.3.36", "tokens": 12}
PLENTY = 1 << 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "states"


@pytest.fixture
def states(folder: Path) -> Iterator[States]:
    clock = count(1_796_134_320)
    with States(folder, limit_bytes=100, free_bytes=lambda _folder: PLENTY, now=lambda: next(clock)) as opened:
        yield opened


def keep(states: States, session: str, content: bytes, description: dict[str, str | int] = HERE) -> str | None:
    path = states.path_for_saving(session)
    path.write_bytes(content)
    return states.keep(session, path, description)


def content(states: States, session: str) -> bytes | None:
    found = states.find(session, HERE)
    assert (found.path is None) != (found.why is None)
    return found.path and found.path.read_bytes()


def files(folder: Path) -> list[str]:
    return sorted(each.suffix for each in folder.iterdir() if each.name != ".lock")


def test_a_cache_is_found_as_it_was_kept(states: States, folder: Path) -> None:
    assert keep(states, "a", b"payload") is None
    assert content(states, "a") == b"payload"
    with States(folder) as later:
        assert content(later, "a") == b"payload"


def test_one_never_kept_is_not_found(states: States, folder: Path) -> None:
    assert states.find("a", HERE) == Found(why="no cache was kept of this conversation")
    assert not folder.exists()


def test_a_newer_cache_takes_the_place_of_the_older(states: States, folder: Path) -> None:
    keep(states, "a", b"older")
    older = states.find("a", HERE).path
    keep(states, "a", b"newer")
    assert content(states, "a") == b"newer"
    assert older is not None
    assert not older.exists()
    assert files(folder) == [".json", ".state"]


def test_a_forgotten_cache_is_gone(states: States, folder: Path) -> None:
    keep(states, "a", b"payload")
    keep(states, "b", b"payload")
    states.forget("a")
    states.forget("c")
    assert content(states, "a") is None
    assert content(states, "b") == b"payload"
    assert files(folder) == [".json", ".state"]


def test_an_id_is_no_path(states: States, folder: Path) -> None:
    assert keep(states, "../../a", b"payload") is None
    assert content(states, "../../a") == b"payload"
    assert list(folder.parent.iterdir()) == [folder]


def test_only_the_user_can_read_it(states: States, folder: Path) -> None:
    before = os.umask(0)
    try:
        path = states.path_for_saving("a")
        path.write_bytes(b"payload")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        states.keep("a", path, HERE)
        assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)


# what is refused


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({**HERE, "model": "other"}, "the kept cache was made with another model"),
        ({**HERE, "library": "0.3.37", "tokens": 13}, "the kept cache was made with another library, tokens"),
        ({**HERE, "more": "x"}, "the kept cache was made with another more"),
        ({"model": "tiny", "quant": "Q8_0"}, "the kept cache was made with another library, template, tokens"),
    ],
)
def test_another_description_is_refused_and_said(states: States, folder: Path, wanted: dict[str, str | int], why: str) -> None:
    keep(states, "a", b"payload")
    assert states.find("a", wanted) == Found(why=why)
    assert files(folder) == []


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (b"Payload", "the kept cache does not match its hash"),
        (b"payloa", "the kept cache has 6 bytes instead of 7"),
        (b"payload ", "the kept cache has 8 bytes instead of 7"),
        (b"", "the kept cache has 0 bytes instead of 7"),
    ],
)
def test_a_damaged_cache_is_refused_and_removed(states: States, folder: Path, damaged: bytes, why: str) -> None:
    keep(states, "a", b"payload")
    path = states.find("a", HERE).path
    assert path is not None
    path.write_bytes(damaged)
    assert states.find("a", HERE) == Found(why=why)
    assert files(folder) == []


def test_a_description_that_was_exchanged_is_refused(states: States, folder: Path) -> None:
    keep(states, "a", b"payload", {**HERE, "model": "other"})
    (entry,) = folder.glob("*.json")
    entry.write_text(entry.read_text().replace("other", "tiny"))
    assert states.find("a", HERE) == Found(why="the kept cache does not match its hash")
    assert files(folder) == []


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[]", b"\xff", b"null", b'{"description": {}}', b'{"description": {}, "bytes": 7, "hash": "../../x"}']
)
def test_an_entry_that_cannot_be_read_is_refused_and_removed(states: States, folder: Path, broken: bytes) -> None:
    keep(states, "a", b"payload")
    (entry,) = folder.glob("*.json")
    entry.write_bytes(broken)
    assert states.find("a", HERE) == Found(why="what was noted of the kept cache is damaged")
    assert files(folder) == []


def test_a_payload_that_was_removed_is_not_found(states: States, folder: Path) -> None:
    keep(states, "a", b"payload")
    (payload,) = folder.glob("*.state")
    payload.unlink()
    assert content(states, "a") is None
    keep(states, "b", b"payload")
    assert files(folder) == [".json", ".state"]


# the limit


def test_the_least_recently_used_go_first(states: States) -> None:
    for session in "abcd":
        keep(states, session, session.encode() * 25)
    assert content(states, "a") == b"a" * 25
    keep(states, "e", b"e" * 50)
    assert [session for session in "abcde" if content(states, session)] == ["a", "d", "e"]


def test_a_cache_as_large_as_the_limit_is_kept_alone(states: States) -> None:
    keep(states, "a", b"a")
    assert keep(states, "b", b"b" * 100) is None
    assert [session for session in "ab" if content(states, session)] == ["b"]


def test_a_cache_beyond_the_limit_is_not_kept_and_the_older_one_stays(states: States, folder: Path) -> None:
    keep(states, "a", b"older")
    assert keep(states, "a", b"x" * 101) == "the cache takes 101 bytes, and 100 may be kept"
    assert content(states, "a") == b"older"
    assert files(folder) == [".json", ".state"]


def test_a_tenth_of_the_free_disk_is_the_limit_where_that_is_less(folder: Path) -> None:
    disk = 600

    def free(_folder: Path) -> int:
        return disk - sum(each.stat().st_size for each in folder.iterdir())

    with States(folder, limit_bytes=1000, free_bytes=free) as states:
        assert states.room() == 60
        assert keep(states, "a", b"x" * 61) == "the cache takes 61 bytes, and 60 may be kept"
        assert keep(states, "a", b"a" * 30) is None
        assert states.room() == 60
        assert keep(states, "b", b"b" * 31) is None
        assert [session for session in "ab" if content(states, session)] == ["b"]


def test_the_real_disk_is_asked(folder: Path) -> None:
    assert 0 < States(folder).room() <= 2 << 30


def test_a_folder_that_cannot_be_used_is_one_line_and_no_room(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    states = States(tmp_path / "file" / "states")
    assert states.room() == 0
    with pytest.raises(TokencliError, match="cannot be used") as failure:
        states.path_for_saving("a")
    assert "permissions" in failure.value.hint
    assert states.find("a", HERE).why == f"the kept cache cannot be read: {os.strerror(errno.ENOTDIR)}"


def test_a_cache_that_was_never_written_is_not_kept(states: States) -> None:
    path = states.path_for_saving("a")
    path.unlink()
    assert "cannot be kept" in (states.keep("a", path, HERE) or "")


# several processes


def program(folder: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    head = "import sys\nfrom pathlib import Path\nfrom tokencli.world.states import States\n"
    head += "states = States(Path(sys.argv[1]), 1000)\n"
    command = [sys.executable, "-c", head + text, str(folder), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_what_a_dead_process_was_saving_is_swept_and_a_living_ones_is_not(states: States, folder: Path) -> None:
    text = "states.path_for_saving('a').write_text('half')\nprint('saving', flush=True)\nsys.stdin.read()"
    process = program(folder, text)
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    keep(states, "b", b"payload")
    assert files(folder) == [".json", ".saving", ".state"]
    process.kill()
    process.communicate()
    keep(states, "b", b"payload again")
    assert files(folder) == [".json", ".state"]


def test_what_was_saved_and_not_kept_goes_at_the_end(folder: Path) -> None:
    with States(folder) as states:
        states.path_for_saving("a").write_text("half")
        states.path_for_saving("a")
        assert files(folder) == [".saving", ".saving"]
    assert files(folder) == []


def test_a_payload_whose_entry_was_never_written_is_swept(states: States, folder: Path) -> None:
    keep(states, "a", b"payload")
    (entry,) = folder.glob("*.json")
    entry.unlink()
    (folder / "half.json.saving").touch()
    keep(states, "b", b"payload")
    assert files(folder) == [".json", ".state"]


def test_processes_that_keep_and_find_at_once_never_see_a_mixture(folder: Path) -> None:
    text = """
for number in range(60):
    path = states.path_for_saving("a")
    path.write_text(f"{sys.argv[2]} {number}")
    assert states.keep("a", path, {"by": sys.argv[2]}) is None
    found = states.find("a", {"by": sys.argv[2]})
    if found.path:
        try:
            assert found.path.read_text().startswith(sys.argv[2])
        except FileNotFoundError:
            pass
    else:
        assert found.why in ("the kept cache was made with another by", "no cache was kept of this conversation"), found.why
states.close()
"""
    processes = [program(folder, text, name) for name in "abc"]
    assert [process.communicate() and process.returncode for process in processes] == [0, 0, 0]
    assert len(files(folder)) <= 2


def test_an_entry_says_what_it_is_in_text_that_people_can_read(states: States, folder: Path) -> None:
    keep(states, "a", b"payload")
    (entry,) = folder.glob("*.json")
    assert json.loads(entry.read_text())["description"] == HERE

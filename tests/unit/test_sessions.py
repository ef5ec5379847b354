"""Conversations on disk: what was shown is there after a kill, two processes do not mix, and a fault of the file is one line."""

import os
import random
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencli.errors import NotSaved, UsageError
from tokencli.world.sessions import Sessions, StoredMessage
from tokencli.world.sessions.file import SCHEMA_VERSION, Database, Syncer

START = 1_796_134_320.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


@pytest.fixture
def sessions(path: Path) -> Iterator[Sessions]:
    clock = count(START)
    with Sessions.open(path, lambda: next(clock)) as opened:
        yield opened


def answer(sessions: Sessions, question: str, *pieces: str, name: str | None = None) -> None:
    session = sessions.create("tiny", name)
    session.add("user", question)
    id = session.add("assistant")
    for piece in pieces:
        session.extend(id, "answer", piece)
    session.finish(id, cut=False)


def program(path: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs `text` with the sessions at `path` opened as `sessions`."""
    head = "import sys\nfrom pathlib import Path\nfrom tokencli.world.sessions import Sessions\n"
    head += "sessions = Sessions.open(Path(sys.argv[1]))\n"
    command = [sys.executable, "-c", head + text, str(path), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


# a conversation


def test_a_conversation_reads_as_it_was_written(path: Path) -> None:
    with Sessions.open(path) as sessions:
        session = sessions.create("tiny", "first try")
        session.set_system("be brief")
        session.set("temperature", "0.5")
        session.set("temperature", "0.2")
        session.set("stop", "\n")
        session.add("user", "hello")
        id = session.add("assistant")
        for kind, text in (("reasoning", "a gree"), ("reasoning", "ting"), ("answer", "hel"), ("answer", "lo")):
            session.extend(id, kind, text)  # type: ignore[arg-type]
        streaming = session.messages()
        session.finish(id, cut=False)
        session.set_model("other")
    assert streaming[1] == StoredMessage("assistant", "hello", "a greeting", cut=True)
    with Sessions.open(path) as sessions:
        again = sessions.find("first try")
        assert again is not None
        assert again.messages() == [StoredMessage("user", "hello"), StoredMessage("assistant", "hello", "a greeting")]
        assert (again.id, again.model, again.system) == (session.id, "other", "be brief")
        assert again.settings() == {"stop": "\n", "temperature": "0.2"}


def test_an_answer_never_finished_is_cut(path: Path) -> None:
    with Sessions.open(path) as sessions:
        session = sessions.create("tiny", "a")
        session.add("user", "hello")
        session.extend(session.add("assistant"), "answer", "hel")
        cut = session.add("assistant")
        session.extend(cut, "answer", "he")
        session.finish(cut, cut=True)
    with Sessions.open(path) as sessions:
        again = sessions.find("a")
        assert again is not None
        assert [(each.content, each.cut) for each in again.messages()] == [("hello", False), ("hel", True), ("he", True)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    with Sessions.open(tmp_path_factory.mktemp("many") / "sessions.db") as opened:
        yield opened


@given(pieces=st.lists(st.text(), max_size=8), finished=st.booleans())
def test_text_is_kept_to_the_character(many: Sessions, pieces: list[str], finished: bool) -> None:
    session = many.create("tiny")
    session.add("user", "".join(pieces))
    id = session.add("assistant")
    for piece in pieces:
        session.extend(id, "answer", piece)
    if finished:
        session.finish(id, cut=False)
    assert [each.content for each in session.messages()] == ["".join(pieces)] * 2
    session.close()


def test_half_a_character_is_a_question_mark(sessions: Sessions) -> None:
    session = sessions.create("tiny \udcff")
    session.add("user", "a\udcffb")
    session.extend(session.add("assistant"), "answer", "\ud83d")
    assert [each.content for each in session.messages()] == ["a?b", "?"]
    assert sessions.find("\udcff") is None


def test_what_was_dropped_is_not_shown_and_not_destroyed(path: Path, sessions: Sessions) -> None:
    session = sessions.create("tiny")
    for text in ("one", "two", "three"):
        session.add("user", text)
    session.drop_after(1)
    session.add("user", "four")
    assert [each.content for each in session.messages()] == ["one", "four"]
    session.drop_after(5)
    assert len(session.messages()) == 2
    session.drop_after(0)
    assert session.messages() == []
    with sqlite3.connect(path) as reader:
        assert reader.execute("SELECT content FROM messages ORDER BY id").fetchall() == [
            ("one",),
            ("two",),
            ("three",),
            ("four",),
        ]
    reader.close()


# names and lists


def test_an_unnamed_conversation_is_named_after_its_time(path: Path) -> None:
    with Sessions.open(path, lambda: START) as sessions:
        names = [sessions.create("tiny").name for _ in range(3)]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{4}", names[0])
    assert names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]


@pytest.mark.parametrize("name", ["", " a", "a ", "-a", "a/b", "a\n", "a\0", "x" * 81, "💥"])
def test_no_name(sessions: Sessions, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        sessions.create("tiny", name)
    with pytest.raises(UsageError, match="cannot be the name"):
        sessions.create("tiny").rename(name)


@pytest.mark.parametrize("name", ["a", "1.2_b - c", "x" * 80, "grüße", "हिन्दी", "中文"])
def test_a_name(sessions: Sessions, name: str) -> None:
    sessions.create("tiny", name)
    assert sessions.find(name)
    with pytest.raises(UsageError, match="already"):
        sessions.create("tiny").rename(name)


def test_a_name_is_found_however_its_marks_are_typed(sessions: Sessions) -> None:
    sessions.create("tiny", "caf\u00e9")
    assert sessions.find("cafe\u0301")


def test_a_renamed_conversation_has_its_new_name_alone(sessions: Sessions) -> None:
    session = sessions.create("tiny", "old")
    session.rename("new")
    session.rename("new")
    assert session.name == "new"
    assert sessions.find("old") is None
    assert sessions.find("new") is session
    sessions.create("tiny", "old")


def test_a_name_refused_is_no_fault_of_the_disk(sessions: Sessions) -> None:
    session = sessions.create("tiny", "a")
    with pytest.raises(UsageError):
        session.rename("/")
    session.add("user", "still written")
    assert len(session.messages()) == 1


def test_the_latest_written_is_the_first_in_the_list(sessions: Sessions) -> None:
    assert sessions.latest() is None
    assert sessions.lines() == []
    one, two = sessions.create("tiny", "one"), sessions.create("big", "two")
    assert sessions.latest() is two
    one.add("user", "hello\nyou")
    one.add("assistant", "x" * 500)
    assert sessions.latest() is one
    first, second = sessions.lines()
    assert (first.name, first.model, first.messages, first.first) == ("one", "tiny", 2, "hello\nyou")
    assert (second.name, second.model, second.messages, second.first) == ("two", "big", 0, "")
    assert first.updated > second.updated >= START


@pytest.mark.parametrize("search", ["STRASSE", "strasse", "straße", "GRÜSSE", "ответ", "ÖL", "street", "split over pieces"])
def test_search_finds_text_in_any_case(sessions: Sessions, search: str) -> None:
    answer(sessions, "Wo ist die Straße?", "Viele Grüße. ", "ОТВЕТ", name="Street öl")
    session = sessions.find("Street öl")
    assert session is not None
    id = session.add("assistant")
    session.extend(id, "answer", "split ov")
    session.extend(id, "answer", "er pieces")
    answer(sessions, "nothing of it", "no", name="other")
    assert [line.name for line in sessions.lines(search)] == ["Street öl"]


def test_search_leaves_out_what_was_dropped(sessions: Sessions) -> None:
    session = sessions.create("tiny")
    session.add("user", "a secret")
    session.drop_after(0)
    assert sessions.lines("secret") == []
    assert [line.messages for line in sessions.lines("")] == [0]


def test_a_deleted_conversation_is_gone_with_all_its_text(path: Path) -> None:
    with Sessions.open(path) as sessions:
        answer(sessions, "hello", "you", name="a")
        session = sessions.find("a")
        assert session is not None
        session.set("seed", "1")
        session.extend(session.add("assistant"), "answer", "unfinished")
        with pytest.raises(UsageError, match="is open"):
            sessions.delete("a")
        session.close()
        sessions.delete("a")
        with pytest.raises(UsageError, match="no saved conversation"):
            sessions.delete("a")
        assert sessions.lines() == []
    with sqlite3.connect(path) as reader:
        for table in ("sessions", "messages", "pieces", "settings"):
            assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    reader.close()
    assert [each.name for each in (path.parent / "locks").iterdir()] == ["opening"]


# kills and power cuts

STREAM = """
session = sessions.create("tiny", sys.argv[2])
session.add("user", "go")
id = session.add("assistant")
for number in range(1_000_000):
    session.extend(id, "answer", f"{number} ")
    sys.stdout.write(f"{number} ")
    sys.stdout.flush()
"""


def test_a_kill_loses_nothing_that_was_printed(path: Path) -> None:
    chance = random.Random(5)
    for attempt in range(10):
        process = program(path, STREAM, f"attempt {attempt}")
        assert process.stdout is not None
        shown = process.stdout.read(chance.randrange(1, 4000))
        os.kill(process.pid, signal.SIGKILL)
        shown += process.stdout.read()
        process.communicate()
        with Sessions.open(path) as sessions:
            session = sessions.find(f"attempt {attempt}")
            assert session is not None
            question, reply = session.messages()
        assert question == StoredMessage("user", "go")
        assert reply.cut
        assert reply.content.startswith(shown)
        assert len(reply.content) <= len(shown) + 8  # the piece that was written and not yet shown
    with Sessions.open(path) as sessions:
        assert len(sessions.lines()) == 10


def test_what_is_written_is_brought_to_the_disk_though_nothing_follows(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    synced = threading.Semaphore(0)
    syncer = Syncer(tmp_path / "log", lambda _log: synced.release(), delay_seconds=0.01)
    assert not synced.acquire(timeout=0.05)
    for _ in range(3):
        syncer.wrote()
        assert synced.acquire(timeout=10)
    syncer.close()
    assert synced.acquire(timeout=10)


def test_a_disk_that_cannot_sync_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    tried = threading.Semaphore(0)

    def fail(_log: int) -> None:
        tried.release()
        raise OSError

    syncer = Syncer(tmp_path / "log", fail, delay_seconds=0.01)
    for _ in range(2):
        syncer.wrote()
        assert tried.acquire(timeout=10)
    syncer.close()


def test_the_thread_that_syncs_ends_with_the_file(path: Path) -> None:
    before = set(threading.enumerate())
    with Sessions.open(path):
        assert [each.name for each in set(threading.enumerate()) - before] == ["sessions-sync"]
    assert set(threading.enumerate()) == before


# several processes


@pytest.mark.parametrize("way", ["find", "latest", "delete"])
def test_a_conversation_open_elsewhere_is_left_alone_until_its_owner_dies(path: Path, way: str) -> None:
    process = program(path, "sessions.create('tiny', 'a')\nprint('open', flush=True)\nsys.stdin.read()")
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    ways = {"find": lambda: sessions.find("a"), "latest": lambda: sessions.latest(), "delete": lambda: sessions.delete("a")}
    with Sessions.open(path) as sessions:
        with pytest.raises(UsageError, match="open in another chat") as refused:
            ways[way]()
        assert "--session OTHER" in refused.value.hint
        sessions.create("tiny", "b").add("user", "meanwhile")
        process.kill()
        process.communicate()
        sessions.find("b").close()  # type: ignore[union-attr]
        if way == "latest":
            sessions.delete("b")
        ways[way]()
        assert ("a" in [line.name for line in sessions.lines()]) == (way != "delete")


def test_a_closed_conversation_can_be_had_by_others(path: Path) -> None:
    with Sessions.open(path) as sessions, Sessions.open(path) as others:
        session = sessions.create("tiny", "a")
        with pytest.raises(UsageError):
            others.find("a")
        session.close()
        session.close()
        assert others.find("a")


def test_processes_that_write_at_once_do_not_hinder_each_other(path: Path) -> None:
    text = """
for number in range(8):
    session = sessions.create("tiny")
    id = session.add("assistant")
    for piece in range(40):
        session.extend(id, "answer", f"{sys.argv[2]}{piece} ")
    session.finish(id, cut=False)
    sessions.lines("a")
sessions.close()
"""
    processes = [program(path, text, name) for name in "abc"]
    assert [process.communicate() and process.returncode for process in processes] == [0, 0, 0]
    with Sessions.open(path) as sessions:
        lines = sessions.lines()
        assert len(lines) == len({line.name for line in lines}) == 24
        texts = [sessions.find(line.name).messages()[0].content for line in lines]  # type: ignore[union-attr]
    assert sorted(texts) == sorted("".join(f"{name}{piece} " for piece in range(40)) for name in "abc" for _ in range(8))


# the file and its faults


def test_only_the_user_can_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        with Sessions.open(path) as sessions:
            sessions.create("tiny").add("user", "secret")
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (path.parent, *path.parent.rglob("*"))}
    finally:
        os.umask(before)
    folders = {"data": 0o700, "locks": 0o700}
    assert modes.items() >= {**folders, "sessions.db": 0o600, "sessions.db-wal": 0o600, "sessions.db-shm": 0o600}.items()
    assert {mode for name, mode in modes.items() if name not in folders} == {0o600}


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    Sessions.open(path).close()
    path.chmod(0o644)
    path.parent.chmod(0o755)
    with Sessions.open(path) as sessions:
        sessions.create("tiny")
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path, path.with_name("sessions.db-wal"))]
    assert modes == [0o700, 0o600, 0o600]


@pytest.mark.parametrize("content", [b"a letter to grandmother" * 100, b"\0" * 5000, b"SQLite format"])
def test_a_file_that_is_no_database_is_moved_aside_and_said(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with Sessions.open(path) as sessions:
        sessions.create("tiny")
        (note,) = sessions.notes
    (aside,) = path.parent.glob("*.broken-*")
    assert aside.read_bytes() == content
    assert aside.name in note
    with Sessions.open(path) as sessions:
        assert len(sessions.lines()) == 1
        assert sessions.notes == ()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_one_line_and_stays_where_it_is(path: Path, share: float) -> None:
    with Sessions.open(path) as sessions:
        for number in range(50):
            answer(sessions, f"{number} " * 500, "yes " * 500)
    size = int(path.stat().st_size * share)
    os.truncate(path, size)
    with pytest.raises(NotSaved, match="damaged") as failure, Sessions.open(path) as sessions:
        sessions.lines("nowhere")
    assert ".recover" in failure.value.hint
    assert "\n" not in failure.value.what
    assert path.stat().st_size == size
    assert not list(path.parent.glob("*.broken-*"))


def test_a_newer_file_is_not_touched(path: Path) -> None:
    Sessions.open(path).close()
    with sqlite3.connect(path) as writer:
        writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    writer.close()
    before = path.read_bytes()
    with pytest.raises(NotSaved, match="newer tokencli") as failure:
        Sessions.open(path)
    assert "update tokencli" in failure.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("statement", ["CREATE TABLE messages (text)", f"PRAGMA user_version = {SCHEMA_VERSION}"])
def test_a_database_of_another_program_is_one_line_and_stays_as_it_is(path: Path, statement: str) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as writer:
        writer.execute(statement)
    writer.close()
    with pytest.raises(NotSaved, match="another program") as failure:
        Sessions.open(path)
    assert "move it away" in failure.value.hint
    with sqlite3.connect(path) as reader:
        assert [name for (name,) in reader.execute("SELECT name FROM sqlite_schema")] in (["messages"], [])
    reader.close()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(NotSaved, match="cannot be kept") as failure:
        Sessions.open(tmp_path / "data" / "sessions.db")
    assert "permissions" in failure.value.hint


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("no_file", [True, False])
def test_a_read_only_folder_is_one_line(no_file: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data" / "sessions.db"
        Sessions.open(path).close()
        if no_file:
            path.unlink()
        for each in (Path(folder), path.parent, path.parent / "locks"):
            each.chmod(0o555)
        with an_ordinary_user(), pytest.raises(NotSaved) as failure:
            Sessions.open(path)
        for each in (Path(folder), path.parent, path.parent / "locks"):
            each.chmod(0o755)
    assert failure.value.hint.startswith(f"check the permissions of {path.parent}")


FULL = """
import resource
from tokencli.errors import NotSaved
session = sessions.create("tiny", "a")
id = session.add("assistant")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    for number in range(100_000):
        session.extend(id, "answer", f"{number:7} " * 10)
except NotSaved as error:
    print(number, error.what, error.hint, sep="|")
changes = (lambda: session.extend(id, "answer", "x"), lambda: session.finish(id, False), lambda: session.add("user", "x"))
for change in changes:
    try:
        change()
    except NotSaved as error:
        print("again", error.what, error.hint, sep="|")
print(len(session.messages()[0].content))
"""


def test_where_a_file_can_grow_no_more_all_before_is_kept_and_nothing_after(path: Path) -> None:
    lines = program(path, FULL).communicate()[0].splitlines()
    written, what, hint = lines[0].split("|")
    assert "cannot be kept" in what
    assert "disk" in hint
    assert lines[1:4] == [f"again|{what}|{hint}"] * 3
    assert int(lines[4]) == int(written) * 80 > 0
    with Sessions.open(path) as sessions:
        session = sessions.find("a")
        assert session is not None
        (message,) = session.messages()
    assert message.content == "".join(f"{number:7} " * 10 for number in range(int(written)))


def test_a_full_disk_is_one_line(path: Path) -> None:
    database = Database(path)
    database.write("PRAGMA max_page_count = 20")
    sessions = Sessions(database, lambda: START)
    session = sessions.create("tiny")
    with pytest.raises(NotSaved, match="the disk is full") as failure:
        session.add("user", "x" * 100_000)
    assert failure.value.hint == f"make room on the disk of {path.parent}"
    assert session.messages() == []
    sessions.close()


def test_a_mistake_of_ours_is_not_blamed_on_the_disk(path: Path) -> None:
    database = Database(path)
    with pytest.raises(sqlite3.OperationalError):
        database.write("INSERT INTO nothing")
    with pytest.raises(sqlite3.IntegrityError), database.transaction():
        database.write("INSERT INTO pieces (message, kind, text) VALUES (77, 'answer', 'no such message')")
    database.close()

"""Fetching from a hub that misbehaves: everything that can go on goes on, all else is told apart, and nothing is lost."""

import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import COMMIT, FakeHub, Fault, fake_hub
from tokencli.core import Event, Fetching, Note
from tokencli.errors import ModelUnavailable, TokencliError
from tokencli.listing import File
from tokencli.world.hub import Cache, Hub

REPO, NAME = "org/tiny-GGUF", "tiny-Q4_K_M.gguf"
DATA = bytes(range(256)) * 8192  # 2 MiB
FILE = File(NAME, len(DATA), hashlib.sha256(DATA).hexdigest())
OTHER = "org/tiny-model-GGUF"
PLENTY = 1 << 40


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with fake_hub({REPO: {NAME: DATA, "README.md": b"# tiny"}, OTHER: {NAME: DATA}}) as hub:
        yield hub


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path, waits: list[float]) -> Hub:
    return Hub(Cache(tmp_path / "hub"), server.url, 0.5, sleep=waits.append, free=lambda _: PLENTY)


def fetched(hub: Hub, file: File = FILE, repo: str = REPO) -> tuple[Path, list[Event]]:
    events: list[Event] = []
    steps = hub.download(repo, COMMIT, file)
    while True:
        try:
            events.append(next(steps))
        except StopIteration as stop:
            return stop.value[0], events


def failure(hub: Hub, file: File = FILE) -> ModelUnavailable:
    with pytest.raises(ModelUnavailable) as caught:
        fetched(hub, file)
    assert caught.value.exit_code == 4
    assert "\n" not in caught.value.what + caught.value.hint
    return caught.value


def listing_failure(hub: Hub, repo: str = REPO) -> TokencliError:
    with pytest.raises(ModelUnavailable) as caught:
        hub.listing(repo)
    assert caught.value.exit_code == 4
    return caught.value


def strays(hub: Hub) -> list[str]:
    blobs = hub.cache.storage(REPO) / "blobs"
    return [each.name for each in blobs.iterdir() if each.name != FILE.sha256]


def test_a_listing_has_sizes_hashes_and_the_commit(hub: Hub) -> None:
    found = hub.listing(REPO)
    assert (found.repo, found.commit) == (REPO, COMMIT)
    assert next((file.path, file.bytes, file.sha256) for file in found.files) == (NAME, len(DATA), FILE.sha256)


def test_a_whole_download_lies_where_the_hub_s_own_library_finds_it(hub: Hub, server: FakeHub) -> None:
    from huggingface_hub import try_to_load_from_cache

    path, events = fetched(hub)
    assert path.read_bytes() == DATA
    assert try_to_load_from_cache(REPO, NAME, cache_dir=hub.cache.folder, revision=COMMIT) == str(path)
    assert path.is_symlink()
    assert path.resolve().name == FILE.sha256
    assert strays(hub) == []
    progress = [event for event in events if isinstance(event, Fetching)]
    assert progress[-1].done == progress[-1].total == len(DATA)
    asked = len(server.asked)
    assert fetched(hub)[0] == path
    assert len(server.asked) == asked  # nothing was asked a second time


def test_the_library_finds_a_second_process_s_work_without_the_network(hub: Hub) -> None:
    fetched(hub)
    assert hub.cache.repositories() == [REPO]
    found = hub.cache.listing(REPO)
    assert found
    assert (found.commit, found.files) == (COMMIT, (FILE,))


def test_a_piece_of_a_file(hub: Hub, server: FakeHub) -> None:
    assert hub.read(REPO, COMMIT, FILE, 1000, 3000) == DATA[1000:3000]
    assert hub.read(REPO, COMMIT, FILE, 0, PLENTY) == DATA
    server.always["cdn"] = Fault(no_range=True)
    assert hub.read(REPO, COMMIT, FILE, 1000, 3000) == DATA[1000:3000]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(after=700_000)],
        [Fault(after=0), Fault(after=0)],
        [Fault(after=300_000, stall=2)],
        [Fault(503), Fault(502)],
        [Fault(500, retry_after=3)],
        [Fault(429, retry_after=2)],
        [Fault(after=500_000), Fault(no_range=True)],
        [Fault(after=100_000)] * 12,
    ],
    ids=["cut", "cut at once", "stalled", "5xx", "5xx with a time", "429 with a time", "no ranges after all", "cut often"],
)
def test_what_may_pass_is_tried_again_from_where_it_stopped(
    faults: list[Fault], hub: Hub, server: FakeHub, waits: list[float]
) -> None:
    server.faults["cdn"] = list(faults)
    path, events = fetched(hub)
    assert path.read_bytes() == DATA
    assert strays(hub) == []
    assert len(waits) == len(faults) - any(fault.no_range for fault in faults)
    assert any(isinstance(event, Note) and "going on in" in event.text for event in events)
    starts = [asked.start for asked in server.asked_for("cdn")]
    if not any(fault.no_range for fault in faults):
        assert starts == sorted(starts)
        assert server.sent <= len(DATA) + len(faults) * (256 << 10)


def test_the_server_says_how_long_to_wait(hub: Hub, server: FakeHub, waits: list[float]) -> None:
    server.faults["cdn"] = [Fault(429, retry_after=7), Fault(after=10)]
    fetched(hub)
    assert waits == [7, 1.0 / 2]


def test_a_server_that_never_gives_a_byte_is_given_up(hub: Hub, server: FakeHub, waits: list[float]) -> None:
    server.always["cdn"] = Fault(after=0)
    assert "the connection broke off in the middle of tiny-Q4_K_M.gguf of hf:org/tiny-GGUF" in failure(hub).what
    assert waits == [1, 2, 4, 8, 16]


def test_what_was_fetched_before_a_failure_is_kept(hub: Hub, server: FakeHub) -> None:
    server.faults["cdn"] = [Fault(after=1_000_000)]
    server.always["cdn"] = Fault(503)
    assert "fault (503)" in failure(hub).what
    assert hub.cache.partial(REPO, FILE).stat().st_size == 1_000_000
    del server.always["cdn"]
    fetched(hub)
    assert server.asked_for("cdn")[-1].start == 1_000_000


def test_a_web_page_is_no_file(hub: Hub, server: FakeHub) -> None:
    server.always["cdn"] = Fault(page=True)
    error = failure(hub)
    assert "answers with a web page instead of tiny-Q4_K_M.gguf" in error.what
    assert "HTTPS_PROXY" in error.hint
    server.always["api"] = Fault(page=True)
    assert "web page instead of hf:org/tiny-GGUF" in listing_failure(hub).what


@pytest.mark.parametrize("fault", [Fault(length=635), Fault(length=635, no_range=True)], ids=["range", "whole"])
def test_a_wrong_length_is_told_before_anything_is_written(fault: Fault, hub: Hub, server: FakeHub) -> None:
    """Report A6-02."""
    server.always["cdn"] = fault
    assert "has 635 bytes of tiny-Q4_K_M.gguf of hf:org/tiny-GGUF, the hub lists 2,097,152" in failure(hub).what
    assert hub.cache.partial(REPO, FILE).stat().st_size == 0


def test_a_wrong_hash_is_thrown_away(hub: Hub, server: FakeHub) -> None:
    """Report A6-03: a corrupt file never stays."""
    server.faults["cdn"] = [Fault(corrupt=True)]
    error = failure(hub)
    assert "has not the hash that the hub lists, and was thrown away" in error.what
    assert list((hub.cache.storage(REPO) / "blobs").iterdir()) == []
    assert fetched(hub)[0].read_bytes() == DATA


def test_a_damaged_beginning_left_by_another_attempt_is_found_by_the_hash(hub: Hub) -> None:
    partial = hub.cache.partial(REPO, FILE)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 1000)
    assert "thrown away" in failure(hub).what
    assert fetched(hub)[0].read_bytes() == DATA


def test_a_beginning_longer_than_the_file_is_no_beginning(hub: Hub) -> None:
    partial = hub.cache.partial(REPO, FILE)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(DATA + b"x")
    assert fetched(hub)[0].read_bytes() == DATA


TOKEN = "hf_secretsecretsecret"
REFUSALS = [  # where, the hub's answer, with an access token, what is said, the hint
    ("api", Fault(401, message="Invalid credentials in Authorization header"), True, "refuses your access", "hf auth login"),
    ("api", Fault(401, message=f'User Access Token "{TOKEN}" is expired'), True, "is wrong or has expired", "HF_TOKEN"),
    ("api", Fault(401, "RepoNotFound", "not found"), True, "there is no repository hf:org/tiny-GGUF", "check the name"),
    ("api", Fault(401, message="Invalid username or password."), False, "is not public, or there is no such", "hf auth login"),
    ("resolve", Fault(401, "GatedRepo", "Access is restricted"), False, "gives it only to those who log in", "accept its terms"),
    ("resolve", Fault(403, "GatedRepo", "not in the list"), True, "your account has not been let in", "accept its terms"),
    ("api", Fault(403, message="Please enable access to public gated repositories in your fine-grained token settings"), True,
     "your access token lacks the right to read", "kind read"),
    ("resolve", Fault(404, "EntryNotFound", "gone"), False, "has no such file any more", "has changed"),
    ("api", Fault(404, "RevisionNotFound", "x"), False, "has no such revision", "leave the revision out"),
    ("api", Fault(410), False, "answers 410", "HF_ENDPOINT"),
    ("api", Fault(429, retry_after=3000), False, "takes no more requests from here", "in 3000 s"),
    ("resolve", Fault(429, retry_after=600), False, "takes no more requests from here", "in 600 s"),
    ("api", Fault(503), False, "has a fault (503)", "try again"),
    ("api", Fault(500), False, "has a fault (500)", "try again"),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "fault", "identified", "says", "hint"), REFUSALS)
def test_refusals_are_told_apart(
    stage: str, fault: Fault, identified: bool, says: str, hint: str, hub: Hub, server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN if identified else "")
    server.always[stage] = fault
    error = listing_failure(hub) if stage == "api" else failure(hub)
    assert says in error.what
    assert hint in error.hint
    assert TOKEN not in error.what + error.hint
    assert {each.authorization for each in server.asked_for(stage)} == {f"Bearer {TOKEN}" if identified else None}


def test_an_access_token_never_leaves_the_hub_s_host(hub: Hub, server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetched(hub)
    assert [each.authorization for each in server.asked_for("resolve")] == [f"Bearer {TOKEN}"]
    assert [each.authorization for each in server.asked_for("cdn")] == [None]
    assert TOKEN.encode() not in b"".join(each.read_bytes() for each in hub.cache.folder.rglob("*") if each.is_file())


def test_nothing_about_this_computer_is_sent(hub: Hub, server: FakeHub) -> None:
    hub.listing(REPO)
    fetched(hub)
    assert {each.agent.split("/")[0] for each in server.asked} == {"tokencli"}
    assert not [each for each in server.asked if "agent/" in each.agent or "telemetry" in each.path or "harness" in each.path]


def test_a_slip_in_the_name_is_met_with_the_nearest(hub: Hub) -> None:
    error = listing_failure(hub, "org/tiny-modl-GGUF")
    assert (error.what, error.hint) == (
        "there is no repository hf:org/tiny-modl-GGUF on the hub",
        "did you mean hf:org/tiny-model-GGUF?",
    )


def test_no_server_at_all(tmp_path: Path) -> None:
    waits: list[float] = []
    hub = Hub(Cache(tmp_path), "http://127.0.0.1:9", 0.5, sleep=waits.append)
    error = listing_failure(hub)
    assert waits == [1]
    assert "the hub cannot be reached for hf:org/tiny-GGUF" in error.what
    assert "network" in error.hint


def test_a_full_disk_is_told_before_and_while(hub: Hub, server: FakeHub, tmp_path: Path) -> None:
    """Report A6-01."""
    small = Hub(hub.cache, server.url, 0.5, free=lambda _: 100 << 20)
    assert "is full, 0.2 GB more are needed" in failure(small).what
    assert server.sent == 0
    free = iter([PLENTY, PLENTY] + [1000] * 99)
    server.bytes_per_second = 2e6
    shrinking = Hub(hub.cache, server.url, 0.5, free=lambda _: next(free))
    assert "what was fetched is kept" in failure(shrinking).hint
    assert hub.cache.partial(REPO, FILE).stat().st_size > 0


def test_a_disk_that_takes_no_more(hub: Hub) -> None:
    """/dev/full is a disk on which nothing fits."""
    partial = hub.cache.partial(REPO, FILE)
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")
    assert "is full" in failure(hub).what


def test_a_cache_that_cannot_be_written_to(hub: Hub) -> None:
    error = failure(dataclasses.replace(hub, cache=Cache(Path("/sys/tokencli"))))  # not even root makes a folder there
    assert "the model folder cannot be written to: /sys/tokencli" in error.what
    assert "HF_HUB_CACHE" in error.hint


def test_a_folder_that_is_a_file(hub: Hub) -> None:
    hub.cache.folder.write_text("in the way")
    assert failure(hub).hint == "check the disk"


def test_without_symlinks_the_file_itself_is_in_the_snapshot(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report A6-11."""
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    path, _ = fetched(hub)
    assert not path.is_symlink()
    assert path.read_bytes() == DATA
    assert hub.cache.find(REPO, COMMIT, FILE) == path


def test_two_at_once_share_one_download(hub: Hub, server: FakeHub) -> None:
    server.bytes_per_second = 2e6
    results: list[tuple[Path, list[Event]]] = []
    threads = [threading.Thread(target=lambda: results.append(fetched(hub))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == DATA for path, _ in results] == [True, True]
    assert server.sent == len(DATA)
    assert any(isinstance(event, Note) and "waiting for it" in event.text for _, events in results for event in events)


def test_a_repository_that_changes_under_way_gives_what_was_listed(hub: Hub, server: FakeHub) -> None:
    listing = hub.listing(REPO)
    server.repos[REPO][NAME] = DATA[::-1]
    assert "has not the hash" in failure(hub, listing.files[0]).what


def test_a_blob_of_another_revision_is_used_as_it_is(hub: Hub, server: FakeHub) -> None:
    fetched(hub)
    sent = server.sent
    path = next(iter(_run(hub.download(REPO, "0" * 40, FILE))))
    assert path.read_bytes() == DATA
    assert server.sent == sent
    assert hub.cache.remove(REPO, "0" * 40, FILE) == 0  # the other revision has it still
    assert hub.cache.find(REPO, COMMIT, FILE)
    assert hub.cache.remove(REPO, COMMIT, FILE) == len(DATA)
    assert not hub.cache.storage(REPO).exists()


def _run(steps: Iterator[Event]) -> list[Path]:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return [stop.value[0]]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"id": REPO},
        {"id": REPO, "sha": "../../x", "siblings": []},
        {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": "../../../evil.gguf", "size": 1, "blobId": "0" * 40}]},
        {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": "/etc/evil.gguf", "size": 1, "blobId": "0" * 40}]},
        {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": "m.gguf", "size": 1, "lfs": {"sha256": "../../evil"}}]},
        {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": "m.gguf", "size": "much", "blobId": "0" * 40}]},
    ],
    ids=["no object", "no files", "commit", "above", "absolute", "hash", "size"],
)
def test_an_answer_that_is_no_hubs_or_leads_out_of_the_cache_is_refused(answer: object, hub: Hub, server: FakeHub) -> None:
    server.always["api"] = Fault(answer=answer)
    assert listing_failure(hub).what == f"what answers for hf:{REPO} is no hub"


def test_a_listing_is_asked_for_again_with_growing_waits(hub: Hub, server: FakeHub, waits: list[float]) -> None:
    server.faults["api"] = [Fault(503), Fault(429, retry_after=9), Fault(502)]
    assert hub.listing(REPO).commit == COMMIT
    assert waits == [1, 9, 4]
    server.always["api"] = Fault(503)
    assert "fault (503)" in listing_failure(hub).what
    assert waits[3:] == [1, 2, 4]

"""The file of tuned settings: what is written is read, and what cannot be trusted is one line and is not used."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from tokencli.core import Device
from tokencli.world.tuned import HEADER, Entry, TunedFile, stamp

ENTRY = Entry(
    model="smollm2-135m", identity="ab12", build="0.3.36", computer="AMD EPYC, 2 cores", devices=("Vulkan0 AMD Radeon 780M",),
    device="CPU", date="2026-12-01", goal="turn", context=4096, confirmed=True, gain=(1.5, 1.4, 1.6),
    settings={"threads": 1, "draft": "ngram", "draft_tokens": 8, "extra_buffers": False},
    environment={"OMP_WAIT_POLICY": "passive"},
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> TunedFile:
    return TunedFile(tmp_path / "config" / "tuned.toml")


def test_what_is_written_is_read_and_a_person_can_read_it(file: TunedFile) -> None:
    nothing = dataclasses.replace(ENTRY, identity="cd34", gain=None, settings={}, environment={})
    file.put(ENTRY)
    file.put(nothing)
    assert file.entries() == ([ENTRY, nothing], [])
    assert file.of("ab12") == ([ENTRY], [])
    text = file.file.read_text("utf-8")
    assert text.startswith(f"# {HEADER}\n")
    for line in ('computer = "AMD EPYC, 2 cores"', "threads = 1", 'OMP_WAIT_POLICY = "passive"', "[tuned.settings]"):
        assert line in text
    assert len(tomllib.loads(text)["tuned"]) == 2
    assert [each.name for each in file.file.parent.iterdir()] == ["tuned.toml"]


def test_a_new_result_takes_the_place_of_the_old_one_for_the_same(file: TunedFile) -> None:
    other = dataclasses.replace(ENTRY, build="0.3.37")
    newer = dataclasses.replace(ENTRY, date="2026-12-02", settings={})
    for each in (ENTRY, other, newer):
        file.put(each)
    assert file.entries() == ([other, newer], [])
    assert file.of("ab12")[0] == [newer, other]


def test_entries_can_be_forgotten(file: TunedFile) -> None:
    file.put(ENTRY)
    assert file.forget(lambda each: each.identity == "cd34") == 0
    assert file.forget(lambda each: each.identity == "ab12") == 1
    assert file.entries() == ([], [])


def test_no_file_is_no_fault(file: TunedFile) -> None:
    assert file.entries() == ([], [])
    assert file.forget(lambda _: True) == 0


@pytest.mark.parametrize("text", ["[[tuned]\n", "\x00", "tuned = ["])
def test_a_corrupted_file_is_one_line_and_is_kept_beside_when_a_new_one_is_written(file: TunedFile, text: str) -> None:
    file.file.parent.mkdir()
    file.file.write_text(text)
    entries, (fault,) = file.entries()
    assert entries == []
    assert "cannot be read" in fault
    assert "\n" not in fault
    file.put(ENTRY)
    assert file.entries() == ([ENTRY], [])
    assert file.file.with_suffix(".toml.old").read_text() == text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("threads = 1", "threads = 0", "threads = 0 is no setting"),
        ("threads = 1", "threads = true", "threads = True is no setting"),
        ("threads = 1", "gpu = 1", "gpu = 1 is no setting"),
        ('OMP_WAIT_POLICY = "passive"', 'LD_PRELOAD = "/tmp/evil.so"', "none of the variables that are tuned"),
        ('OMP_WAIT_POLICY = "passive"', "OMP_WAIT_POLICY = 1", "none of the variables that are tuned"),
        ('model = "smollm2-135m"', "speed = 3", "unknown 'speed'"),
        ('identity = "ab12"', "identity = 12", "identity = 12 is no text"),
        ('goal = "turn"', "", "'goal'"),
        ("gain = [1.5, 1.4, 1.6]", "gain = [1.5]", "a gain is a median"),
    ],
)
def test_an_entry_that_is_not_ours_is_one_line_and_the_others_stand(file: TunedFile, old: str, new: str, says: str) -> None:
    other = dataclasses.replace(ENTRY, identity="cd34", settings={}, environment={}, model="x", goal="decode", gain=None)
    file.put(ENTRY)
    file.put(other)
    text = file.file.read_text("utf-8")
    assert old in text
    file.file.write_text(text.replace(old, new, 1))
    entries, (fault,) = file.entries()
    assert entries == [other]
    assert says in fault
    assert "entry 1 of" in fault


def test_what_has_changed_since_is_named() -> None:
    assert ENTRY.stale("0.3.36", "AMD EPYC, 2 cores") is None
    assert ENTRY.stale("0.3.36", "AMD EPYC, 2 cores", ENTRY.devices) is None
    assert "0.3.36 then and is 0.3.37 now" in str(ENTRY.stale("0.3.37", "AMD EPYC, 2 cores"))
    assert "this is AMD EPYC, 4 cores" in str(ENTRY.stale("0.3.36", "AMD EPYC, 4 cores"))
    assert "780M then and are none now" in str(ENTRY.stale("0.3.36", "AMD EPYC, 2 cores", ()))


def test_devices_are_told_by_name_and_driver() -> None:
    cpu = Device("CPU", "cpu", "AMD EPYC", 1, 1)
    gpu = Device("Vulkan0", "integrated", "AMD Radeon 780M (RADV PHOENIX)", 1, 1)
    assert stamp([gpu, cpu]) == ("Vulkan0 AMD Radeon 780M (RADV PHOENIX)",)

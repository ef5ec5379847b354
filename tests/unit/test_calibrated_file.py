"""The file of what was measured of this computer: what is written is read, what cannot be trusted is one line, stale is told."""

import dataclasses
from pathlib import Path

import pytest

from tests.unit.test_planner import IGPU, machine
from tokencli.app.calibrated import speeds_here
from tokencli.app.remembered import this_computer
from tokencli.app.world import World
from tokencli.core import Calibration
from tokencli.world import tuned
from tokencli.world.calibrated import HEADER, Calibrated, CalibrationFile
from tokencli.world.tuned import TunedFile

MEASURED = Calibration("CPU", 2, {"Q8_0": 34e9, "F16": 40e9}, 6e-5, 15e9, {"Q8_0": 9e12})
ENTRY = Calibrated("0.3.36", "AMD EPYC, 2 cores", ("Vulkan0 AMD Radeon 780M",), "2026-12-01", MEASURED, 0.05)
BARE = Calibrated("0.3.36", "AMD EPYC, 2 cores", (), "2026-12-01", Calibration("Vulkan0", None, {"F16": 70e9}, 6e-5))


@pytest.fixture
def file(tmp_path: Path) -> CalibrationFile:
    return CalibrationFile(tmp_path / "config" / "calibrated.toml")


def test_what_is_written_is_read_and_a_person_can_read_it(file: CalibrationFile) -> None:
    file.put([ENTRY, BARE])
    assert file.entries() == ([ENTRY, BARE], [])
    text = file.file.read_text("utf-8")
    assert text.startswith(f"# {HEADER}\n")
    for line in ('computer = "AMD EPYC, 2 cores"', "threads = 2", "[calibrated.decode]", "F16 = 40000000000"):
        assert line in text
    assert [each.name for each in file.file.parent.iterdir()] == ["calibrated.toml"]


def test_a_new_one_takes_the_place_of_the_old_one_for_the_same_device_and_threads(file: CalibrationFile) -> None:
    newer = dataclasses.replace(ENTRY, date="2026-12-02")
    one_thread = dataclasses.replace(ENTRY, calibration=dataclasses.replace(MEASURED, threads=1))
    for each in (ENTRY, one_thread, newer):
        file.put([each])
    assert file.entries() == ([one_thread, newer], [])
    assert file.forget() == 2
    assert file.entries() == ([], [])
    assert file.forget() == 0


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("threads = 2", "threads = 0", "threads = 0"),
        ("F16 = 40000000000", "F16 = -1", "F16 = -1"),
        ("F16 = 40000000000", "F16 = nan", "F16 = nan"),
        ("F16 = 40000000000", "Q17 = 1", "'Q17' is no tensor type"),
        ("layer_seconds = 6e-05", "layer_seconds = true", "layer_seconds = True"),
        ("layer_seconds = 6e-05", "", "it lacks 'layer_seconds'"),
        ('device = "CPU"', "device = 3", "device = 3 is no text"),
        ("[[calibrated]]", "[[calibrated]", "cannot be read"),
    ],
)
def test_a_corrupted_file_is_one_line_and_is_not_used(file: CalibrationFile, old: str, new: str, says: str) -> None:
    file.put([ENTRY])
    text = file.file.read_text("utf-8")
    assert old in text
    file.file.write_text(text.replace(old, new, 1))
    entries, (fault,) = file.entries()
    assert entries == []
    assert says in fault
    assert "\n" not in fault
    file.put([ENTRY])
    assert file.entries() == ([ENTRY], [])
    assert file.file.with_suffix(".toml.old").exists(), "what a person wrote there is kept"


def here(folder: Path) -> tuple[World, Calibrated]:
    world = World(read_machine=lambda _: machine(), cache=folder, tuned_file=TunedFile(folder / "tuned.toml"))
    return world, Calibrated(tuned.this_build(), this_computer(world), tuned.stamp([IGPU]), "2026-12-01", MEASURED)


def test_what_holds_here_is_used_without_a_word(tmp_path: Path) -> None:
    world, entry = here(tmp_path)
    assert speeds_here([IGPU], world).calibrations == ()
    world.calibrations.put([entry, dataclasses.replace(entry, computer="another")])
    found = speeds_here([IGPU], world)
    assert (found.calibrations, found.note) == ((MEASURED,), "")
    assert found.calibration("CPU", 2) == MEASURED
    assert found.calibration("CPU", 1) is found.calibration("Vulkan0", None) is None


@pytest.mark.parametrize("change", [{"build": "0.1"}, {"computer": "another"}, {"devices": ("CUDA0 GTX 1660",)}])
def test_what_is_stale_is_one_line_and_is_not_used(tmp_path: Path, change: dict[str, object]) -> None:
    world, entry = here(tmp_path)
    world.calibrations.put([dataclasses.replace(entry, **change)])
    found = speeds_here([IGPU], world)
    assert found.calibrations == ()
    assert found.note.startswith("the calibration of 2026-12-01 is not used: ")
    assert found.note.endswith("; tokencli tune measures anew")

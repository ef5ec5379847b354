"""What a self-test found out is remembered by build and CPU, and a broken memory costs a second self-test at most."""

import json
from pathlib import Path

import pytest

from tokencli.world.verdicts import NO_EXTRA_BUFFERS, Verdicts, build_and_cpu, library_and_drivers

CPUINFO = "processor : 0\nmodel name : {model}\ncpu MHz : {mhz}\nflags : fpu {flags}\n\nprocessor : 1\nmodel name : other\n"


def test_a_crash_is_remembered_for_this_key_alone(tmp_path: Path) -> None:
    file = tmp_path / "cache/tokencli/verdicts.json"
    assert not Verdicts(file, "here").extra_buffers_crash()
    Verdicts(file, "here").remember_extra_buffers_crash()
    assert Verdicts(file, "here").extra_buffers_crash()
    assert not Verdicts(file, "another build").extra_buffers_crash()


def test_verdicts_are_added_and_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "verdicts.json"
    for key in ("a", "b", "a"):
        Verdicts(file, key).remember_extra_buffers_crash()
    assert json.loads(file.read_text()) == {"a": NO_EXTRA_BUFFERS, "b": NO_EXTRA_BUFFERS}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("broken", [b"", b"{", b"\xff\xfe\0", b"[1]", b'"text"', b"null", b'{"here": 3}', b'{"here": null}'])
def test_a_broken_file_is_an_empty_one_and_is_written_anew(tmp_path: Path, broken: bytes) -> None:
    file = tmp_path / "verdicts.json"
    file.write_bytes(broken)
    assert not Verdicts(file, "here").extra_buffers_crash()
    Verdicts(file, "here").remember_extra_buffers_crash()
    assert Verdicts(file, "here").extra_buffers_crash()


def test_a_folder_where_the_file_should_be_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "verdicts.json").mkdir()
    verdicts = Verdicts(tmp_path / "verdicts.json", "here")
    verdicts.remember_extra_buffers_crash()
    assert not verdicts.extra_buffers_crash()
    assert [path.name for path in tmp_path.iterdir()] == ["verdicts.json"]


def test_a_cache_folder_that_cannot_be_made_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    verdicts = Verdicts(tmp_path / "cache/verdicts.json", "here")
    verdicts.remember_extra_buffers_crash()
    assert not verdicts.extra_buffers_crash()


def key(root: Path, model: str = "Xeon", mhz: str = "2000", flags: str = "avx2 amx_tile") -> str:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(CPUINFO.format(model=model, mhz=mhz, flags=flags))
    return build_and_cpu(root)


def test_the_key_changes_with_the_processor_and_not_with_its_clock(tmp_path: Path) -> None:
    assert key(tmp_path) == key(tmp_path, mhz="3500")
    assert len({key(tmp_path), key(tmp_path, model="EPYC"), key(tmp_path, flags="avx2")}) == 3


def test_a_computer_without_cpuinfo_has_a_key(tmp_path: Path) -> None:
    assert build_and_cpu(tmp_path)


def test_a_mode_and_a_margin_are_of_one_library_and_driver(tmp_path: Path) -> None:
    here = Verdicts(tmp_path / "verdicts.json", "build", "driver 1")
    here.remember_mode("without cooperative matrices")
    here.remember_margin("RTX 2060", "llama", 500)
    here.remember_margin("RTX 2060", "qwen3", 700)
    assert (here.mode(), here.margin("RTX 2060", "llama"), here.margin("RTX 2060", "qwen3")) == (
        "without cooperative matrices",
        500,
        700,
    )
    assert here.margin("RTX 3060", "llama") == 0
    other = Verdicts(here.file, "build", "driver 2")
    assert (other.mode(), other.margin("RTX 2060", "llama")) == ("", 0)


def test_forgetting_leaves_no_file(tmp_path: Path) -> None:
    here = Verdicts(tmp_path / "verdicts.json", "build", "driver")
    here.remember_margin("RTX 2060", "llama", 500)
    assert here.forget() == 1
    assert list(tmp_path.iterdir()) == []
    assert here.forget() == 0


def test_the_key_of_gpus_changes_with_kernel_and_drivers(tmp_path: Path) -> None:
    """A driver that was updated is tried again."""
    keys = [library_and_drivers(tmp_path)]
    for path, text in (
        ("proc/sys/kernel/osrelease", "6.12"),
        ("proc/driver/nvidia/version", "Kernel Module 550"),
        ("usr/share/vulkan/icd.d/radeon_icd.json", "{}"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        keys.append(library_and_drivers(tmp_path))
    assert len(set(keys)) == 4
    assert keys[-1] == library_and_drivers(tmp_path)


def test_a_manifest_that_a_removed_driver_has_left_stops_nothing(tmp_path: Path) -> None:
    """A link to nowhere ended every command."""
    folder = tmp_path / "usr/share/vulkan/icd.d"
    folder.mkdir(parents=True)
    before = library_and_drivers(tmp_path)
    (folder / "nvidia_icd.json").symlink_to(tmp_path / "gone.json")
    assert library_and_drivers(tmp_path) not in ("", before)

"""A library with AMX by a GCC before 13 (FACTS, Building): doctor finds and cures it without a rebuild."""

import re
from pathlib import Path

import pytest

from tokencli import app
from tokencli.app.doctor import Report, doctor
from tokencli.core import Model, Note, Text
from tokencli.plan.choose import Wishes
from tokencli.world.machine.libraries import library_files
from tokencli.world.verdicts import Verdicts

_COMPILER = re.compile(rb"GCC: \([^)]*\) (\d+)\.")  # of the section .comment


def compilers(files: list[Path]) -> set[int]:
    """Major versions of GCC that made the CPU library."""
    made = [file.read_bytes() for file in files if "ggml-cpu" in file.name]
    return {int(found) for data in made for found in _COMPILER.findall(data)}


def why_not(cpu_flags: str, gcc: set[int], system_info: str) -> str | None:
    """What this computer or library lacks to show the fault."""
    if "amx_tile" not in cpu_flags.split():
        return "this processor has no AMX"
    if "AMX_INT8 = 1" not in system_info:
        return "the library is built without AMX, as scripts/install does with such a compiler"
    return None if gcc and min(gcc) < 13 else f"the library is not by a GCC before 13 but by {sorted(gcc) or 'another compiler'}"


def here(llama: object) -> str | None:
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0]
    return why_not(flags, compilers(library_files()), llama.llama_print_system_info().decode())  # type: ignore[attr-defined]


def test_doctor_cures_it_without_a_rebuild(llama: object, smollm2: Model, tmp_path: Path) -> None:
    if reason := here(llama):
        pytest.skip(f"NOT TESTED: {reason}; tests/engine/test_self_test.py shows it with a worker that crashes alike")
    (tmp_path / "cache").mkdir()
    verdicts = Verdicts(tmp_path / "verdicts.json", "this build")
    world = app.World(find_verdicts=lambda: verdicts, cache=tmp_path / "cache")
    (report,) = [event for event in doctor(world) if isinstance(event, Report)]
    assert any("it is used without them from now on" in each.what for each in report.findings)
    assert verdicts.extra_buffers_crash()
    question = app.Question(smollm2.file, "Hello", wishes=Wishes(gpu_layers=0, context=512), max_tokens=4)
    events = list(app.run(question, world))
    assert any(isinstance(event, Text) for event in events)
    assert not any("was killed" in event.text for event in events if isinstance(event, Note))


@pytest.mark.parametrize(
    ("flags", "gcc", "info", "reason"),
    [
        ("avx2 amx_tile amx_int8", {12}, "CPU : AVX2 = 1 | AMX_INT8 = 1 | ", None),
        ("avx2", {12}, "AMX_INT8 = 1", "this processor has no AMX"),
        ("amx_tile", {12}, "AVX2 = 1", "the library is built without AMX"),
        ("amx_tile", {13, 14}, "AMX_INT8 = 1", "not by a GCC before 13 but by [13, 14]"),
        ("amx_tile", set(), "AMX_INT8 = 1", "another compiler"),
    ],
)
def test_where_the_fault_can_be_shown(flags: str, gcc: set[int], info: str, reason: str | None) -> None:
    found = why_not(flags, gcc, info)
    assert found == reason if reason is None else reason in (found or "")


def test_the_compiler_stands_in_the_library(tmp_path: Path) -> None:
    for name, text in (
        ("libggml-cpu.so", b"\0GCC: (Debian 12.2.0-14+deb12u1) 12.2.0\0"),
        ("libggml-base.so", b"GCC: (GNU) 9.1.0\0"),
    ):
        (tmp_path / name).write_bytes(b"\x7fELF" + text)
    assert compilers(sorted(tmp_path.iterdir())) == {12}

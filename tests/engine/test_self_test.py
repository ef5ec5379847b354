"""What doctor makes of devices that fail their self-test, and of a sound one; the worker is told how to fail."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tokencli import app
from tokencli.app.doctor import Report, doctor, forget
from tokencli.app.isolation import NO_MATRICES
from tokencli.cli.doctor import report_json
from tokencli.core import Finding, Holder, Machine, Model, Note, Text
from tokencli.engine.client import Engine
from tokencli.plan.choose import Wishes
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("faulty_worker.py")


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    return Verdicts(tmp_path / "verdicts.json", "this build", "this driver")


@pytest.fixture
def world(tmp_path: Path, verdicts: Verdicts) -> Callable[..., app.World]:
    def make(*faults: str, words: str = "its last words") -> app.World:
        def engine(environment: Mapping[str, str]) -> Engine:
            telling = {"FAULT_WORDS": words, **environment}
            return Engine([sys.executable, "-S", str(WORKER), *faults], telling, silence_seconds=0.7)

        (tmp_path / "cache").mkdir(exist_ok=True)
        return app.World(
            start_engine=lambda: engine({}),
            start_safer_engine=engine,
            find_verdicts=lambda: verdicts,
            backends=lambda: ("cpu", "vulkan"),
            probe_seconds=0.7,
            cache=tmp_path / "cache",
        )

    return make


@pytest.fixture
def found(world: Callable[..., app.World], tiny: Callable[..., Model]) -> Callable[..., list[Finding]]:
    def look(*faults: str) -> list[Finding]:
        (report,) = [event for event in doctor(world(*faults), tiny().file) if isinstance(event, Report)]
        return list(report.findings)

    return look


def about(findings: list[Finding], device: str) -> Finding:
    """The self-test's finding: the last word on a device."""
    return next(
        each for each in findings if device in each.what and any(word in each.what for word in ("answers", "fail", "build"))
    )


def test_sound_devices_answer_alike(found: Callable[..., list[Finding]], verdicts: Verdicts) -> None:
    findings = found("gpu")
    assert [about(findings, device).level for device in ("CPU", "Vulkan0")] == ["pass", "pass"]
    assert not verdicts.file.exists()


def test_a_device_that_answers_otherwise_is_told(found: Callable[..., list[Finding]]) -> None:
    """Report A7-14: a driver may compute nonsense."""
    findings = found("gpu", "nonsense@decode?gpu")
    told = about(findings, "Vulkan0")
    assert told.level == "warn"
    assert "answers otherwise than the CPU: 'helloXXXXX" in told.what


def test_a_build_that_crashes_with_extra_buffers_is_cured_without_a_rebuild(
    found: Callable[..., list[Finding]], verdicts: Verdicts
) -> None:
    """FACTS: AMX and GCC 12."""
    findings = found("segv@first?extra")
    cured = about(findings, "CPU's extra buffers")
    assert cured.level == "warn"
    assert "SIGSEGV while decoding the first token" in cured.what
    assert "-mno-amx-tile" in cured.hint
    assert verdicts.extra_buffers_crash()


def test_what_doctor_found_keeps_run_from_the_crash(
    found: Callable[..., list[Finding]], world: Callable[..., app.World], tiny: Callable[..., Model]
) -> None:
    question = app.Question(tiny().file, "hi", wishes=Wishes(context=512))
    notes = [event.text for event in app.run(question, world("segv@first?extra")) if isinstance(event, Note)]
    assert any("SIGSEGV" in note for note in notes), "else this shows nothing"
    forget(world())
    found("segv@first?extra")
    events = list(app.run(question, world("segv@first?extra")))
    assert [event.text for event in events if isinstance(event, Note)] == [
        "without the CPU's extra buffers: this build crashed with them on this CPU (slower prefill)"
    ]
    assert "".join(event.text for event in events if isinstance(event, Text)) == "hello wide world"


def test_a_gpu_that_needs_a_safer_mode_gets_it(found: Callable[..., list[Finding]], verdicts: Verdicts) -> None:
    findings = found("gpu", "segv@load?gpu&matrices")
    assert any(f"Vulkan0 fails but {NO_MATRICES}" in each.what and each.level == "warn" for each in findings)
    assert about(findings, "CPU").level == "pass"
    assert verdicts.mode() == NO_MATRICES


def test_a_gpu_that_fails_is_a_failure_with_a_way_around(found: Callable[..., list[Finding]], verdicts: Verdicts) -> None:
    findings = found("gpu", "hang@load?gpu")
    assert findings[0].level == "fail"
    assert findings[0].what.startswith("Vulkan0 failed its self-test: the engine has given no sign of life")
    assert findings[0].hint == "--device cpu works around it"
    assert about(findings, "CPU").level == "pass"
    assert verdicts.mode() == ""


def test_a_driver_that_fails_in_its_probe_is_a_finding_and_the_rest_is_tested(found: Callable[..., list[Finding]]) -> None:
    findings = found("gpu", "segv@devices?vulkan")
    assert any("was killed by SIGSEGV while listing devices" in each.what and each.level == "warn" for each in findings)
    assert any(each.what == "going on without Vulkan" for each in findings)
    assert about(findings, "CPU").level == "pass"


def test_a_report_names_nobody(world: Callable[..., app.World], tiny: Callable[..., Model], tmp_path: Path) -> None:
    """The engine's last words, a probe's path and the names of programs: where a user's name could come from."""
    there = replace(
        world("segv@load", words="cannot map /home/alice/models/a.gguf (alice@alices-laptop), Alice's, alicea"),
        owner=lambda: {"/home/alice": "~", "alice": "USER", "alices-laptop": "HOST"},
        read_holders=lambda: (Holder("alice-sync", 5 << 30), Holder("alice", 4 << 30)),
        read_machine=lambda devices: Machine(
            4, 8 << 30, 1 << 30, tuple(devices), failed_probes=("/home/alice/x: denied to alice on alices-laptop",)
        ),
    )
    (report,) = [event for event in doctor(there, tiny().file) if isinstance(event, Report)]
    shown = report_json(report)
    assert "cannot map ~/models/a.gguf (USER@HOST), Alice's, alicea" in shown
    assert "~/x: denied to USER on HOST" in shown
    assert "USER-sync (5.0 GiB) and USER (4.0 GiB) hold RAM" in shown
    assert not re.search(r"\balice\b|alices-laptop", shown)


def test_forgetting_takes_all_back(verdicts: Verdicts) -> None:
    verdicts.remember_extra_buffers_crash()
    verdicts.remember_mode(NO_MATRICES)
    world = app.World(find_verdicts=lambda: verdicts)
    assert (forget(world), forget(world)) == (2, 0)
    assert not verdicts.extra_buffers_crash()

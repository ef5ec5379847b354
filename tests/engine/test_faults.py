"""Whatever a worker dies of, and wherever: the command goes on after what it printed, or ends in time with a clear line."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tokencli import app
from tokencli.app.isolation import NO_MATRICES
from tokencli.core import Event, Machine, Model, Note, Plan, Planned, Text
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed, EngineTimeout, OutOfMemory, TokencliError
from tokencli.plan.choose import Wishes
from tokencli.world.load import Busy, LoadMeter
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("faulty_worker.py")
WHOLE = "hello wide world"
FAULTS = ("segv", "abort", "hang", "alloc", "kill")
STAGES = ("devices", "dry_run", "load", "first", "prefill", "decode")


class Told:
    """What came of one run: its text, notes and the last plan, how long it took, and the error that ended it."""

    def __init__(self, events: list[Event], error: TokencliError | None, seconds: float) -> None:
        self.text = "".join(event.text for event in events if isinstance(event, Text))
        self.notes = [event.text for event in events if isinstance(event, Note)]
        self.plan: Plan | None = next((event.plan for event in reversed(events) if isinstance(event, Planned)), None)
        self.error, self.seconds = error, seconds


Run = Callable[..., Told]


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    return Verdicts(tmp_path / "verdicts.json", "this build", "this driver")


def meter(cores: float) -> LoadMeter:
    """One that sees other programs keep so many cores busy."""

    def read() -> Busy:
        now = time.monotonic()
        return Busy(now, cores * now, 0.0)

    return LoadMeter(read, read())


@pytest.fixture
def run(tmp_path: Path, tiny: Callable[..., Model], verdicts: Verdicts) -> Run:
    model = tiny().file

    def start(*faults: str, asleep: bool = False, busy: float = 0.0, **wishes: object) -> Told:
        def engine(environment: Mapping[str, str]) -> Engine:
            command = [sys.executable, "-S", str(WORKER), *faults]
            return Engine(
                command,
                {"FAULT_MARK": str(tmp_path / "mark"), "FAULT_FREE": str(tmp_path / "free"), **environment},
                silence_seconds=0.7,
            )

        world = app.World(
            start_engine=lambda: engine({}),
            start_safer_engine=engine,
            find_verdicts=lambda: verdicts,
            gpus_asleep=lambda: asleep,
            read_machine=lambda devices: Machine(4, 8 << 30, 8 << 30, tuple(devices)),
            start_meter=lambda _pid: meter(busy),
            backends=lambda: ("cpu", "vulkan"),
            probe_seconds=0.7,
            cache=tmp_path / "cache",
        )
        events: list[Event] = []
        begun, error = time.monotonic(), None
        question = app.Question(model, "hi", wishes=Wishes(**{"context": 1024, **wishes}))
        try:
            events.extend(app.run(question, world))  # keeps what came before an error
        except TokencliError as caught:
            error = caught
        return Told(events, error, time.monotonic() - begun)

    return start


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    """No process and no file but what is meant to stay."""
    yield
    assert psutil.Process(os.getpid()).children() == []
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"verdicts.json", "mark", "cache/ghosts/.lock"}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_fails_once_costs_no_word(run: Run, fault: str, stage: str) -> None:
    told = run("gpu", f"{fault}@{stage}?once")
    assert told.error is None, told.error
    assert told.text == WHOLE
    assert told.seconds < 6
    assert len(told.notes) <= 4, told.notes


@pytest.mark.parametrize("stage", ["dry_run", "load", "first", "prefill", "decode"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_gpu_that_always_fails_leads_to_the_cpu(run: Run, fault: str, stage: str) -> None:
    told = run("gpu", f"{fault}@{stage}" if stage == "dry_run" else f"{fault}@{stage}?gpu")
    assert told.error is None, told.error
    assert told.text == WHOLE
    assert told.plan
    assert told.plan.gpu_layers == 0
    assert told.seconds < 12


@pytest.mark.parametrize("stage", ["devices", "load", "first", "prefill", "decode"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_always_fails_ends_in_time_with_what_was_shown(run: Run, fault: str, stage: str) -> None:
    told = run(f"{fault}@{stage}")
    assert isinstance(told.error, EngineTimeout if fault == "hang" else EngineCrashed)
    assert told.error.exit_code == 1
    assert told.error.hint
    assert told.text == (WHOLE[:5] if stage == "decode" else "")
    assert told.seconds < 8


def test_the_same_crash_twice_ends(run: Run) -> None:
    told = run("segv@load")
    assert "was killed by SIGSEGV while loading the model: its last words (twice in the same way)" in str(told.error)
    assert len(told.notes) == 1


def test_the_steps_are_told_a_line_each(run: Run) -> None:
    told = run("gpu", "segv@load?gpu")
    assert [note.partition("; ")[2] for note in told.notes] == [
        "trying once more without cooperative matrices",
        "trying once more on the CPU",
    ]


# memory


def test_a_device_that_refuses_gets_less_until_it_fits_and_that_is_remembered(run: Run, verdicts: Verdicts) -> None:
    told = run("gpu", "refused@load?over=2")
    assert told.plan
    assert told.plan.gpu_layers == 2
    assert told.text == WHOLE
    margin = verdicts.margin("A Fake Card", "llama")
    assert margin > 0
    again = run("gpu")
    assert any("of Vulkan0 are left free: a llama model that should have fitted did not" in note for note in again.notes)


def test_what_was_asked_for_teaches_nothing(run: Run, verdicts: Verdicts) -> None:
    told = run("gpu", "refused@load?over=2", gpu_layers=4)
    assert told.plan
    assert told.plan.gpu_layers == 2
    assert verdicts.margin("A Fake Card", "llama") == 0


def test_a_refusal_in_mid_answer_goes_on_with_less(run: Run) -> None:
    told = run("gpu", "refused@decode?gpu")
    assert told.text == WHOLE
    assert told.plan
    assert told.plan.gpu_layers == 0
    assert all(note.endswith("and the answer goes on") for note in told.notes if "memory" in note)


def test_memory_that_never_suffices_ends_with_exit_3(run: Run) -> None:
    told = run("refused@load")
    assert isinstance(told.error, OutOfMemory)
    assert [note.partition("; ")[2] for note in told.notes] == ["trying once more with a context of 512"]


def test_the_second_of_two_plans_around_the_first(run: Run, tmp_path: Path) -> None:
    """What a device has free is asked for each time, so what another program took meanwhile counts."""
    first = run("gpu")
    assert first.plan
    assert first.plan.gpu_layers == first.plan.model.offloadable_layers
    (tmp_path / "free").write_text("1000000")
    second = run("gpu")
    assert second.plan
    assert second.plan.gpu_layers < first.plan.gpu_layers
    assert second.text == WHOLE
    assert any("may be used there" in note for note in second.notes), second.notes
    (tmp_path / "free").unlink()


def test_busy_cores_are_seen_while_the_engine_starts(run: Run) -> None:
    told = run("slow@devices", busy=2.0)
    assert told.plan
    assert told.plan.threads == 2
    assert told.notes == ["2 of 4 cores used: other programs keep 2.0 of them busy"]


# drivers


def test_a_driver_that_crashes_in_its_probe_is_used_more_carefully_and_that_is_remembered(run: Run, verdicts: Verdicts) -> None:
    """Report A1-32."""
    told = run("gpu", "segv@devices?matrices")
    assert told.plan
    assert told.plan.device == "Vulkan0"
    assert told.notes[:2] == ["the engine was killed by SIGSEGV while listing devices: its last words", f"going on {NO_MATRICES}"]
    assert verdicts.mode() == NO_MATRICES
    again = run("gpu", "segv@devices?matrices")
    assert again.notes[0].startswith(f"{NO_MATRICES}: this driver failed otherwise")


def test_a_driver_that_always_crashes_in_its_probe_is_left_out_and_an_empty_list_is_not_remembered(
    run: Run, verdicts: Verdicts
) -> None:
    """Reports A1-09, A1-27, A1-33: the next run may find it well."""
    told = run("gpu", "abort@devices?vulkan")
    assert told.text == WHOLE
    assert told.plan
    assert told.plan.device is None
    assert told.notes[-1] == "going on without Vulkan"
    assert verdicts.mode() == ""
    again = run("gpu")
    assert again.plan
    assert again.plan.device == "Vulkan0"


def test_a_driver_that_hangs_in_its_probe_is_waited_for_once(run: Run, verdicts: Verdicts) -> None:
    run("gpu", "hang@devices?vulkan")
    assert verdicts.mode() == "without Vulkan"
    again = run("gpu", "hang@devices?vulkan")
    assert again.seconds < 0.7
    assert "tokencli doctor --forget tries all of it again" in again.notes[0]


def test_a_sleeping_gpu_is_not_woken_for_the_cpu(run: Run) -> None:
    """Report A1-34: the devices are listed with every GPU hidden."""
    told = run("gpu", "segv@devices?vulkan", asleep=True, gpu_layers=0)
    assert told.text == WHOLE
    assert told.notes == []

"""`tune` on real workers: trials that fail are told and end nothing, what is kept, and that no worker stays."""

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import tiny_models
from tokencli.app.measuring import request_of
from tokencli.app.trials import Trials
from tokencli.app.tune import Matrix, Result, Task, Tried, forget, listed, tune
from tokencli.app.world import World, planner_here, read_model
from tokencli.core import Note
from tokencli.engine.client import Engine
from tokencli.errors import EngineError, Interrupted, UsageError
from tokencli.plan.choose import Wishes
from tokencli.tune.dials import Meaning
from tokencli.tune.search import TrialFailed
from tokencli.world.tuned import TunedFile

FAKE = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]
WISHES = Wishes(threads=1, context=512, device="cpu")


class Workers:
    """Real workers, remembered; with a variable in the environment, or after the first, they are what the test says."""

    def __init__(self, with_variable: Callable[[], Engine] = Engine, after_the_first: Callable[[], Engine] = Engine) -> None:
        self.started: list[Engine] = []
        self._with_variable, self._after_the_first = with_variable, after_the_first

    def __call__(self, environment: Mapping[str, str] | None = None) -> Engine:
        start = self._with_variable if environment else self._after_the_first if self.started else Engine
        self.started.append(start())
        return self.started[-1]

    @property
    def alive(self) -> int:
        return sum(each._process.poll() is None for each in self.started)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_models.write(tmp_path / "m.gguf", weight_type="Q8_0"))


def world(folder: Path, workers: Workers) -> World:
    return World(
        start_engine=workers, start_safer_engine=workers, cache=folder / "cache", tuned_file=TunedFile(folder / "tuned.toml")
    )


def finished(steps: Iterator[object]) -> tuple[Result, list[object]]:
    events: list[object] = []
    while True:
        try:
            events.append(next(steps))
        except StopIteration as stop:
            return stop.value, events


def test_it_measures_within_the_budget_and_leaves_no_worker(tmp_path: Path, model: str) -> None:
    workers = Workers()
    here = world(tmp_path, workers)
    result, events = finished(tune(Task(model, WISHES, budget=6), here))
    assert result.outcome
    assert result.outcome.seconds < 12
    assert result.outcome.trials == sum(isinstance(event, Tried) for event in events) > 5
    assert any(isinstance(event, Note) and event.text.startswith("measured with prompts of") for event in events)
    matrix = next(event for event in events if isinstance(event, Matrix))
    assert not {"threads", "device", "batch_threads"} & {dial.name for dial in matrix.dials}, "flags have decided them"
    assert workers.alive == 0
    assert result.before.threads == result.after.threads == 1
    entries, faults = listed(here)
    assert [(each.model, why) for each, why in entries] == ([(model, None)] if result.outcome.confirmed else [])
    assert faults == []


def test_a_dry_run_starts_no_trial(tmp_path: Path, model: str) -> None:
    workers = Workers()
    result, events = finished(tune(Task(model, WISHES, dry_run=True), world(tmp_path, workers)))
    assert (result.outcome, result.entry, len(workers.started)) == (None, None, 1)
    assert not any(isinstance(event, Tried) for event in events)
    assert not (tmp_path / "tuned.toml").exists()


def test_a_worker_that_crashes_is_a_failed_trial_with_its_reason(tmp_path: Path, model: str) -> None:
    workers = Workers(lambda: Engine(command=[*FAKE, "crash-always"]))
    result, _ = finished(tune(Task(model, WISHES, budget=6), world(tmp_path, workers)))
    assert result.outcome
    (failure,) = result.outcome.failures
    assert (failure.dial, failure.value) == ("OMP_WAIT_POLICY", "passive")
    assert "SIGSEGV" in failure.why
    assert "OMP_WAIT_POLICY" not in result.changed
    assert workers.alive == 0


def test_what_was_found_is_kept_when_it_is_interrupted(tmp_path: Path, model: str) -> None:
    workers = Workers()
    steps = tune(Task(model, WISHES, budget=60), world(tmp_path, workers))
    for event in steps:
        if isinstance(event, Tried) and event.trial.stage == "draft":
            break
    try:
        steps.throw(KeyboardInterrupt)
    except StopIteration as stop:
        result = stop.value
    assert result.interrupted
    assert not result.outcome.confirmed
    assert (result.entry, result.changed) == (None, {}), "one round tells nothing"
    assert workers.alive == 0


def test_the_users_prompts_are_measured(tmp_path: Path, model: str) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    for number in range(9):
        (prompts / f"{number}.txt").write_text("why " * (1 + number))
    (prompts / "long.txt").write_text("x " * 2000)
    (prompts / "empty.txt").write_text("\n")
    _, events = finished(tune(Task(model, WISHES, budget=2, prompts=prompts), world(tmp_path, Workers())))
    (note,) = (event.text for event in events if isinstance(event, Note) and event.text.startswith("measured"))
    assert "(your own)" in note
    assert note.split("(your own)")[0].count(",") == 3, "four of them"


def test_prompts_that_cannot_be_used_are_said(tmp_path: Path, model: str) -> None:
    (tmp_path / "long.txt").write_text("x " * 2000)
    for file, says in (("missing", "cannot be read"), ("long.txt", "no prompt of")):
        workers = Workers()
        with pytest.raises(UsageError, match=says):
            finished(tune(Task(model, WISHES, prompts=tmp_path / file), world(tmp_path, workers)))
        assert workers.alive == 0


def test_a_model_that_cannot_be_measured_is_an_error(tmp_path: Path, model: str) -> None:
    workers = Workers(after_the_first=lambda: Engine(command=[*FAKE, "crash-always"]))
    with pytest.raises(EngineError, match="SIGSEGV"):
        finished(tune(Task(model, WISHES), world(tmp_path, workers)))
    assert workers.alive == 0


def test_forgetting_is_by_name_or_by_the_same_bytes(tmp_path: Path, model: str) -> None:
    from tests.unit.test_tuned_file import ENTRY
    from tokencli.world import gguf_file

    here = world(tmp_path, Workers())
    here.tuned_file.put(dataclasses.replace(ENTRY, model="gone"))
    here.tuned_file.put(dataclasses.replace(ENTRY, model="another name", identity=gguf_file.identity(Path(model))))
    assert (forget("nothing", here), forget("gone", here), forget(model, here)) == (0, 1, 1)


class TestTrials:
    @pytest.fixture
    def trials(self, tmp_path: Path, model: str) -> Iterator[Callable[..., Trials]]:
        made: list[Trials] = []
        engine = Engine()

        def make(workers: Workers) -> Trials:
            here = world(tmp_path, workers)
            planner = planner_here(engine, read_model(model, here), None, False, None, here)
            made.append(Trials(planner, WISHES, here, "turn", least_seconds=1.0))
            return made[-1]

        yield make
        for each in made:
            each.close()
        engine.close()

    def test_a_worker_that_hangs_is_a_failed_trial(self, trials: Callable[..., Trials]) -> None:
        here = trials(Workers(lambda: Engine(command=[*FAKE, "silent"])))
        here.loaded(Meaning("CPU", {}, {}))
        here.load_seconds = 0.01
        with pytest.raises(TrialFailed, match="did not finish loading"):
            here.measure(Meaning("CPU", {}, {"OMP_WAIT_POLICY": "passive"}), False)

    def test_a_plan_that_cannot_be_is_a_failed_trial(self, trials: Callable[..., Trials]) -> None:
        with pytest.raises(TrialFailed, match="flash attention"):
            trials(Workers()).measure(Meaning("CPU", {"kv_type": "q8_0", "flash_attention": "off"}, {}), False)

    def test_a_depth_needs_no_load_and_another_setting_does(self, trials: Callable[..., Trials]) -> None:
        workers = Workers()
        here = trials(workers)
        for depth in (4, 8, 4):
            here.measure(Meaning("CPU", {"draft": "ngram", "draft_tokens": depth}, {}), False)
        assert len(workers.started) == 1
        here.measure(Meaning("CPU", {"ubatch": 128}, {}), False)
        here.measure(Meaning("CPU", {"draft": "ngram", "draft_tokens": 4}, {}), False)
        assert (len(workers.started), workers.alive) == (2, 2), "both stay"
        here.measure(Meaning("CPU", {"ubatch": 128}, {}), True)
        assert (len(workers.started), workers.alive) == (3, 2), "a fresh one in its place"
        for ubatch in (256, 64, 32):
            here.measure(Meaning("CPU", {"ubatch": ubatch}, {}), False)
        assert (len(workers.started), workers.alive) == (6, 4), "never more than four"

    def test_a_worker_that_died_at_rest_fails_no_other(self, trials: Callable[..., Trials]) -> None:
        workers = Workers()
        here = trials(workers)
        here.loaded(Meaning("CPU", {}, {}))
        os.kill(workers.started[0].process_id, signal.SIGKILL)
        here.measure(Meaning("CPU", {"ubatch": 128}, {}), False)
        here.measure(Meaning("CPU", {"ubatch": 256}, {}), False)
        assert (len(workers.started), workers.alive, len(here._running)) == (3, 2, 2)

    def test_what_was_learned_of_a_draft_is_handed_on_to_the_next_worker(self, trials: Callable[..., Trials]) -> None:
        here, lookup = trials(Workers()), Meaning("CPU", {"draft": "ngram"}, {})
        here.loaded(Meaning("CPU", {}, {}))
        here.begin((request_of("why", 8),), 1.0)
        here.measure(lookup, False)
        first = here.pace(lookup)
        assert first, "what adapts has learned"
        here.measure(lookup, True)
        second = here.pace(lookup)
        assert second
        assert second["rounds"] > first["rounds"], "and goes on in a new process"

    def test_threads_for_prompts_that_are_those_for_all_need_no_load(self, trials: Callable[..., Trials]) -> None:
        workers = Workers()
        here = trials(workers)
        here.measure(Meaning("CPU", {}, {}), False)
        here.measure(Meaning("CPU", {"batch_threads": 1}, {}), False)
        assert len(workers.started) == 1


def test_an_interruption_in_a_load_ends_it_all(tmp_path: Path, model: str) -> None:
    def interrupted() -> Engine:
        raise Interrupted("interrupted")

    workers = Workers(after_the_first=interrupted)
    with pytest.raises(Interrupted):
        finished(tune(Task(model, WISHES), world(tmp_path, workers)))
    assert workers.alive == 0

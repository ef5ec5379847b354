"""Calibration on real workers: what is measured, that nothing stays of it, and what `plan` says afterwards."""

import itertools
from pathlib import Path

import pytest

from tests import tiny_models
from tests.engine.test_tune_story import WISHES, Workers, finished
from tokencli.app.plan import plan
from tokencli.app.tune import Result, Task, tune
from tokencli.app.world import World
from tokencli.core import Note
from tokencli.engine.client import Engine
from tokencli.errors import Interrupted
from tokencli.world.tuned import TunedFile


class Clock:
    """Runs away: a search of 30 seconds is over after 30 looks at it."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return float(next(self._ticks))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_models.write(tmp_path / "m.gguf", weight_type="Q8_0"))


def world(folder: Path, workers: Workers) -> World:
    return World(
        start_engine=workers,
        start_safer_engine=workers,
        cache=folder / "cache",
        tuned_file=TunedFile(folder / "tuned.toml"),
        now=Clock(),
    )


def test_after_tune_plan_says_calibrated(tmp_path: Path, model: str) -> None:
    workers = Workers()
    here = world(tmp_path, workers)
    before = plan(model, WISHES, None, here).plan.predicted
    assert before.origin is None
    result, events = finished(tune(Task(model, WISHES, budget=30), here))
    assert any(isinstance(event, Note) and event.text.startswith("calibrating predictions for CPU") for event in events)
    (finding,) = result.calibrations
    assert (finding.device, finding.threads) == ("CPU", 1)
    assert workers.alive == 0
    assert not list((tmp_path / "cache").glob("yardsticks-*"))
    if finding.fit.calibration is None:  # beside other work its runs may contradict each other
        assert finding.fit.refused[-1].startswith("all of it")
        return
    assert "Q8_0" in finding.fit.calibration.decode
    after = plan(model, WISHES, None, here).plan.predicted
    assert after.origin == "calibrated"
    assert after.decode_tokens_per_second


def test_beside_a_short_budget_nothing_is_calibrated(tmp_path: Path, model: str) -> None:
    result, _ = finished(tune(Task(model, WISHES, budget=20), world(tmp_path, Workers())))
    assert result.calibrations == ()
    assert not (tmp_path / "calibrated.toml").exists()


def test_an_interruption_keeps_what_tune_found(tmp_path: Path, model: str) -> None:
    class Interrupting(Workers):
        calibrating = False

        def __call__(self, environment: object = None) -> Engine:
            if self.calibrating:
                raise Interrupted("interrupted")
            return super().__call__(environment)  # type: ignore[arg-type]

    workers = Interrupting()
    steps = tune(Task(model, WISHES, budget=30), world(tmp_path, workers))
    result: Result | None = None
    while result is None:
        try:
            event = next(steps)
        except StopIteration as stop:
            result = stop.value
        else:
            workers.calibrating |= isinstance(event, Note) and event.text.startswith("calibrating")
    assert workers.calibrating
    assert result.interrupted
    assert result.outcome
    assert (result.calibrations, workers.alive) == ((), 0)

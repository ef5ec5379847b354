"""The engine seam: whatever becomes of the worker, the client ends in time with a clear error and leaves no process."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.engine.conftest import ask, load, plan_for
from tokencli.core import Event, Loading, Model, Prefilling, Text
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed, EngineTimeout

LONG = "The quick brown fox jumps over the lazy dog. " * 180


def events_until(engine: Engine, model: Model, moment: type[Event]) -> Iterator[Event]:
    """The open request of an engine that has just told the first event of the kind."""
    if moment is Loading:
        events = engine.load(plan_for(model))
    else:
        load(engine, plan_for(model, context=4096))
        events = engine.generate(ask(LONG))
    next(event for event in events if isinstance(event, moment))
    return events


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
@pytest.mark.parametrize(
    ("moment", "doing"), [(Loading, "loading the model"), (Prefilling, "reading the prompt"), (Text, "generating")]
)
def test_a_killed_worker_is_a_clear_error_in_time(smollm2: Model, moment: type[Event], doing: str, how: signal.Signals) -> None:
    """Report A1-27: a native abort takes the worker, never the command."""
    with Engine() as engine:
        events = events_until(engine, smollm2, moment)
        os.kill(engine.process_id, how)
        died = time.monotonic()
        with pytest.raises(EngineCrashed, match=f"was killed by {how.name} while {doing}") as caught:
            list(events)
        assert time.monotonic() - died < 2
    assert caught.value.log, "the last log lines come along"
    assert gone(engine.process_id)


def test_a_worker_that_hangs_at_load_is_given_up(smollm2: Model) -> None:
    """Report A7-02."""
    with Engine(silence_seconds=1) as engine:
        events = engine.load(plan_for(smollm2))
        next(events)
        os.kill(engine.process_id, signal.SIGSTOP)
        with pytest.raises(EngineTimeout, match="no sign of life for 1 s while loading the model"):
            list(events)
    assert gone(engine.process_id)


def test_a_load_that_takes_longer_than_allowed_is_given_up(smollm2: Model) -> None:
    with Engine() as engine:
        engine.devices()
        events = engine.load(plan_for(smollm2), timeout=0.5)
        next(events)
        os.kill(engine.process_id, signal.SIGSTOP)
        with pytest.raises(EngineTimeout, match="did not finish loading the model in the time allowed"):
            list(events)
    assert gone(engine.process_id)


def test_closing_ends_a_worker_deep_in_native_code(smollm2: Model) -> None:
    with Engine() as engine:
        load(engine, plan_for(smollm2, context=4096))
        next(engine.generate(ask(LONG)))
    assert gone(engine.process_id)


def test_a_crashed_engine_stays_crashed(smollm2: Model) -> None:
    with Engine() as engine:
        os.kill(engine.process_id, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(EngineCrashed):
                engine.devices()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_in_the_middle_of_a_line_is_a_crash_like_any_other() -> None:
    worker = Path(__file__).with_name("fake_worker.py")
    with Engine([sys.executable, str(worker), "half-a-line"], silence_seconds=2) as engine:
        with pytest.raises(EngineCrashed, match="was killed by SIGKILL while generating"):
            list(engine.generate(ask()))
        with pytest.raises(EngineCrashed):
            engine.devices()

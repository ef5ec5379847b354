"""A build that crashes at its first decode (FACTS: AMX and GCC before 13): tried once more without extra buffers, remembered."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokencli import app
from tokencli.core import Event, Model, Note, Planned, Text
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("fake_worker.py")


def world(behaviour: str, folder: Path) -> app.World:
    return app.World(
        start_engine=lambda: Engine(command=[sys.executable, str(WORKER), behaviour]),
        find_verdicts=lambda: Verdicts(folder / "verdicts.json", "this build"),
    )


@pytest.fixture
def ask(tiny: Callable[..., Model]) -> Callable[[app.World], list[Event]]:
    question = app.Question(model=tiny().file, prompt="hi")
    return lambda world: list(app.run(question, world))


def test_the_second_try_answers_and_the_verdict_is_remembered(tmp_path: Path, ask: Callable[[app.World], list[Event]]) -> None:
    broken = world("crash-in-first-decode", tmp_path)
    events = ask(broken)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert "was killed by SIGSEGV while decoding the first token" in notes[0]
    assert notes[0].endswith("trying once more without the CPU's extra buffers")
    assert Text("answer", "hello") in events
    assert broken.find_verdicts().extra_buffers_crash()

    again = ask(broken)
    plan = next(event.plan for event in again if isinstance(event, Planned))
    assert not plan.extra_buffers
    assert any("without the CPU's extra buffers" in note for note in plan.notes)
    assert not any("SIGSEGV" in event.text for event in again if isinstance(event, Note)), "no second crash"


def test_a_crash_that_has_another_cause_ends_after_the_second_try(
    tmp_path: Path, ask: Callable[[app.World], list[Event]]
) -> None:
    broken = world("crash-always", tmp_path)
    with pytest.raises(EngineCrashed, match="SIGSEGV while decoding the first token: general protection fault"):
        ask(broken)
    assert not broken.find_verdicts().extra_buffers_crash(), "what did not help is not remembered"


def test_a_build_that_works_leaves_no_verdict(tmp_path: Path, ask: Callable[[app.World], list[Event]]) -> None:
    sound = world("answer", tmp_path)
    assert Text("answer", "hello") in ask(sound)
    assert not list(tmp_path.iterdir())

"""Ctrl-C while the engine cannot end in time: it is killed, and nothing is answered that nobody waits for any more."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokencli import app
from tokencli.app.chat import Chat, ChatWishes
from tokencli.core import Event, Loaded, Machine, Model, Note, Prefilling, Text
from tokencli.engine.client import Engine
from tokencli.errors import Interrupted
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import Sessions
from tokencli.world.states import States
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("faulty_worker.py")
WISHES = Wishes(context=1024)


@pytest.fixture
def world(tmp_path: Path) -> Callable[[str], app.World]:
    def make(fault: str) -> app.World:
        command, environment = [sys.executable, "-S", str(WORKER), fault], {"FAULT_MARK": str(tmp_path / "mark")}
        return app.World(
            start_engine=lambda: Engine(command, environment, silence_seconds=20, end_seconds=0.3),
            find_verdicts=lambda: Verdicts(tmp_path / "verdicts.json", "build", "driver"),
            read_machine=lambda devices: Machine(4, 8 << 30, 8 << 30, tuple(devices)),
            backends=lambda: ("cpu",),
            cache=tmp_path / "cache",
            open_sessions=lambda: Sessions.open(tmp_path / "sessions.db"),
            open_states=lambda: States(tmp_path / "states"),
        )

    return make


def told_until_interrupted(events: Iterator[Event], moment: Event) -> list[Event]:
    """What came of an answer when Ctrl-C was pressed at `moment`."""
    told: list[Event] = []

    def press() -> None:
        for event in events:
            told.append(event)
            if event == moment:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        press()
    return told


@pytest.mark.parametrize("fault", ["hang@prefill", "late@prefill"])
def test_an_interrupted_run_is_not_begun_again(world: Callable[[str], app.World], tiny: Callable[..., Model], fault: str) -> None:
    events = app.run(app.Question(tiny().file, "hi", wishes=WISHES), world(fault))
    told = told_until_interrupted(events, Prefilling(0, 9))
    assert len([event for event in told if isinstance(event, Loaded)]) == 1


def test_an_interrupted_chat_keeps_what_was_said_and_starts_another_engine(
    world: Callable[[str], app.World], tiny: Callable[..., Model]
) -> None:
    with Chat(ChatWishes(tiny().file, WISHES), world("hang@decode?once")) as chat:
        list(chat.open())
        told_until_interrupted(chat.say("hi"), Text("answer", "o"))
        assert [(each.content, each.cut) for each in chat.messages] == [("hi", False), ("hello", True)]
        again = list(chat.say("and now?"))
        assert len([event for event in again if isinstance(event, Loaded)]) == 1
        assert not [event.text for event in again if isinstance(event, Note) and "started again" in event.text]
        assert chat.messages[-1].content == "hello wide world"

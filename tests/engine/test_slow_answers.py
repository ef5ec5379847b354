"""An answer far slower than predicted: `run` says it with what is seen here, `chat` once a conversation (report A7-12)."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tokencli import app
from tokencli.app.chat import Chat, ChatWishes
from tokencli.core import Device, Machine, Model, Note, Strain
from tokencli.engine.client import Engine
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import Sessions
from tokencli.world.states import States
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("faulty_worker.py")
GIB = 1 << 30
BUSY = Strain((("chrome", 1.5),))


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., app.World]:
    def make(speed: float, bandwidth: float | None = 50e9) -> app.World:
        def read(devices: list[Device]) -> Machine:
            return Machine(4, 8 * GIB, 8 * GIB, tuple(replace(each, bandwidth_bytes_per_second=bandwidth) for each in devices))

        return app.World(
            start_engine=lambda: Engine([sys.executable, "-S", str(WORKER)], {"FAULT_SPEED": str(speed)}),
            find_verdicts=lambda: Verdicts(tmp_path / "verdicts.json", "build", "driver"),
            read_machine=read,
            read_strain=lambda _: BUSY,
            backends=lambda: ("cpu",),
            cache=tmp_path / "cache",
            open_sessions=lambda: Sessions.open(tmp_path / "sessions.db"),
            open_states=lambda: States(tmp_path / "states"),
        )

    return make


def slow(notes: list[str]) -> list[str]:
    return [note for note in notes if "were predicted" in note]


@pytest.mark.parametrize(("speed", "bandwidth", "said"), [(1.0, 50e9, True), (1e6, 50e9, False), (1.0, None, False)])
def test_run_says_it_where_something_was_predicted(
    world: Callable[..., app.World], tiny: Callable[..., Model], speed: float, bandwidth: float | None, said: bool
) -> None:
    question = app.Question(tiny().file, "hi", wishes=Wishes(context=1024))
    notes = [event.text for event in app.run(question, world(speed, bandwidth)) if isinstance(event, Note)]
    assert bool(slow(notes)) == said
    assert all("other programs keep cores busy: chrome (1.5)" in note for note in slow(notes))


def test_chat_says_it_once_a_conversation(world: Callable[..., app.World], tiny: Callable[..., Model]) -> None:
    wishes = ChatWishes(tiny().file, Wishes(context=1024))
    with Chat(wishes, world(1.0)) as chat:
        list(chat.open())
        told = [slow([event.text for event in chat.say(text) if isinstance(event, Note)]) for text in ("a", "b")]
        chat.clear()
        told.append(slow([event.text for event in chat.say("c") if isinstance(event, Note)]))
    assert [len(each) for each in told] == [1, 0, 1]

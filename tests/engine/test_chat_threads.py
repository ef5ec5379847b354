"""A chat looks at the other programs before each answer, and leaves them their cores for as long as they use them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import answer, ask, load, plan_for
from tokencli import app
from tokencli.app.chat import Chat, ChatWishes
from tokencli.core import Machine, Model, Note
from tokencli.engine.client import Engine
from tokencli.engine.model import LoadedModel, Opening
from tokencli.plan.choose import Wishes
from tokencli.world.load import Busy, LoadMeter
from tokencli.world.sessions import Sessions
from tokencli.world.states import States
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("faulty_worker.py")
Talk = Callable[..., tuple[list[str], list[list[str]]]]


def seeing(cores: Iterator[float | None]) -> Callable[[int], LoadMeter]:
    """Meters that see so many busy cores, one after the other; None: too short a time to tell."""

    def start(_worker: int) -> LoadMeter:
        found = next(cores)
        return LoadMeter(lambda: Busy(1.0, found, 0.0) if found is not None else None, Busy(0.0, 0.0, 0.0))

    return start


@pytest.fixture
def talk(tmp_path: Path, tiny: Callable[..., Model]) -> Talk:
    def run(*cores: float | None, **wishes: object) -> tuple[list[str], list[list[str]]]:
        """The threads asked for, and the notes, of an answer for each number of busy cores after the first, the load's."""
        asked = tmp_path / "asked"
        meters = seeing(iter([*cores, None]))
        world = app.World(
            start_engine=lambda: Engine([sys.executable, "-S", str(WORKER)], {"FAULT_ASKED": str(asked)}),
            find_verdicts=lambda: Verdicts(tmp_path / "verdicts.json", "build", "driver"),
            read_machine=lambda devices: Machine(4, 8 << 30, 8 << 30, tuple(devices)),
            start_meter=meters,
            backends=lambda: ("cpu",),
            cache=tmp_path / "cache",
            open_sessions=lambda: Sessions.open(tmp_path / "sessions.db"),
            open_states=lambda: States(tmp_path / "states"),
        )
        with Chat(ChatWishes(tiny().file, Wishes(context=1024, **wishes)), world) as chat:
            list(chat.open())
            notes = [[event.text for event in chat.say("hi") if isinstance(event, Note)] for _ in cores[1:]]
        return asked.read_text().split(), notes

    return run


def test_each_answer_has_the_threads_that_others_leave(talk: Talk) -> None:
    threads, notes = talk(0.0, 0.1, 2.2, 2.9, None, 0.0)
    assert threads == ["None", "2", "1", "1", "None"]
    assert notes == [
        [],
        ["2 of 4 cores used: other programs keep 2.2 of them busy"],
        ["1 of 4 cores used: other programs keep 2.9 of them busy"],
        [],
        [],
    ]


def test_a_load_that_saw_busy_cores_does_not_bind_the_conversation(talk: Talk) -> None:
    assert talk(3.0, 0.0, 3.0)[0] == ["4", "None"]


def test_threads_that_were_asked_for_stay(talk: Talk) -> None:
    assert talk(0.0, 3.0, threads=4) == (["None"], [[]])


def test_the_engine_computes_with_them_and_then_as_before(llama: Any, tiny: Callable[..., Model]) -> None:
    model = LoadedModel(llama, Opening.of_target(plan_for(tiny(), context=256, threads=1)), lambda _: True)
    model.open_context()
    counts = []
    for wanted in (2, None):
        model.use_threads(wanted)
        counts.append((llama.llama_n_threads(model._context), llama.llama_n_threads_batch(model._context)))
    model.close()
    assert counts == [(2, 2), (1, 1)]


def test_the_text_is_the_same(tiny: Callable[..., Model]) -> None:
    with Engine() as engine:
        load(engine, plan_for(tiny(), context=256))
        texts = [answer(engine.generate(ask("Hello", max_tokens=8, threads=threads)))[0] for threads in (None, 2, 1)]
    assert texts[0]
    assert texts == texts[:1] * 3

"""A Vulkan driver that compiles shaders with the first tokens is silent for long: told, waited for, remembered (A7-03, A7-04)."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import LAVAPIPE
from tests.engine.conftest import plan_for
from tokencli import app
from tokencli.app.chat import Chat, ChatWishes
from tokencli.core import Event, Loading, Model, Note, Quiet, Text
from tokencli.engine.client import Engine
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import Sessions
from tokencli.world.states import States
from tokencli.world.verdicts import Verdicts

WORKER = Path(__file__).with_name("faulty_worker.py")
TOLD = (
    "no sign of life for 0.1 s: the driver probably compiles shaders, the first time for such a model: "
    "that may take minutes, once"
)


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    return Verdicts(tmp_path / "verdicts.json", "build", "driver")


@pytest.fixture
def world(tmp_path: Path, verdicts: Verdicts) -> Callable[..., app.World]:
    def make(*faults: str) -> app.World:
        def engine(environment: Mapping[str, str]) -> Engine:
            return Engine([sys.executable, "-S", str(WORKER), *faults], environment, silence_seconds=0.7, quiet_seconds=0.1)

        return app.World(
            start_engine=lambda: engine({}),
            start_safer_engine=engine,
            find_verdicts=lambda: verdicts,
            backends=lambda: ("cpu", "vulkan"),
            cache=tmp_path / "cache",
            open_sessions=lambda: Sessions.open(tmp_path / "sessions.db"),
            open_states=lambda: States(tmp_path / "states"),
        )

    return make


def shaders(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note) and "shaders" in event.text]


def ask(model: Model, world: app.World, **wishes: object) -> list[Event]:
    return list(app.run(app.Question(model.file, "hi", wishes=Wishes(context=512, **wishes), max_tokens=4), world))


@pytest.mark.parametrize("stages", [["first"], ["prefill"], ["first", "prefill"]], ids="+".join)
def test_the_silence_is_told_once_and_not_the_next_time(
    world: Callable[..., app.World], tiny: Callable[..., Model], verdicts: Verdicts, stages: list[str]
) -> None:
    slow = world("gpu", *(f"slow@{stage}?gpu" for stage in stages))
    assert shaders(ask(tiny(), slow)) == [TOLD]
    assert verdicts.has_compiled("llama", "Q8_0")
    assert shaders(ask(tiny(), slow)) == []
    assert shaders(ask(tiny("sliding"), slow)) == [TOLD], "another kind of model needs others"


def test_on_the_cpu_nothing_is_compiled(world: Callable[..., app.World], tiny: Callable[..., Model], verdicts: Verdicts) -> None:
    assert shaders(ask(tiny(), world("gpu", "slow@first"), gpu_layers=0)) == []
    assert not verdicts.has_compiled("llama", "Q8_0")


def test_a_chat_says_it_too(world: Callable[..., app.World], tiny: Callable[..., Model], verdicts: Verdicts) -> None:
    with Chat(ChatWishes(tiny().file, Wishes(context=512)), world("gpu", "slow@prefill?gpu")) as chat:
        list(chat.open())
        told = [shaders(list(chat.say(text))) for text in ("a", "b")]
    assert told == [[TOLD], []]
    assert verdicts.has_compiled("llama", "Q8_0")


def test_three_times_as_long_is_waited_where_shaders_may_be_compiled(
    world: Callable[..., app.World], tiny: Callable[..., Model], verdicts: Verdicts
) -> None:
    """A worker that needs 1.2 s, where 0.7 s are a hang."""
    patient = world("gpu", "slower@first?gpu")
    events = ask(tiny(), patient)
    assert "".join(event.text for event in events if isinstance(event, Text)) == "hello wide world"
    assert not any("in the time" in event.text or "trying" in event.text for event in events if isinstance(event, Note))
    again = [event.text for event in ask(tiny(), patient) if isinstance(event, Note)]
    assert "the engine has given no sign of life for 0.7 s while decoding the first token" in again[0]


def test_a_hang_is_given_up_all_the_same(world: Callable[..., app.World], tiny: Callable[..., Model], verdicts: Verdicts) -> None:
    notes = [event.text for event in ask(tiny(), world("gpu", "hang@first?gpu")) if isinstance(event, Note)]
    assert any("given no sign of life for 2.1 s while decoding the first token; trying once more" in note for note in notes)
    assert not verdicts.has_compiled("llama", "Q8_0"), "the CPU answered"


def test_forgetting_forgets_them_and_counts_failures_alone(verdicts: Verdicts) -> None:
    verdicts.remember_compiled("llama", "Q8_0")
    verdicts.remember_mode("without cooperative matrices")
    assert not Verdicts(verdicts.file, "build", "another driver").has_compiled("llama", "Q8_0")
    assert not verdicts.has_compiled("llama", "Q4_K_M")
    assert verdicts.forget() == 1
    assert not verdicts.has_compiled("llama", "Q8_0")


@pytest.mark.vulkan
def test_a_real_driver_is_silent_when_its_cache_is_off(lavapipe: str, tiny: Callable[..., Model]) -> None:
    """Mesa without its cache, as after an update of the driver: half a minute here, of which the first moments are waited for."""
    plan = plan_for(tiny(layers=1), gpu_layers=2, device=lavapipe, context=256)
    with Engine(environment={**LAVAPIPE, "MESA_SHADER_CACHE_DISABLE": "true"}, quiet_seconds=0.05) as engine:
        engine.expect_compiling()
        told = [next(event for event in engine.load(plan) if not isinstance(event, Loading))]
    assert told == [Quiet(0.05)]

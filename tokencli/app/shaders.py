"""Shaders that a Vulkan driver compiles with a model's first tokens: a silence that is no hang (reports A7-03, A7-04)."""

from collections.abc import Iterable, Iterator

from tokencli.app.world import World
from tokencli.core import Done, Event, Note, Plan, Quiet


def may_compile(plan: Plan, world: World) -> bool:
    """Whether this driver has not run such a model before, as far as is remembered."""
    if plan.backend != "vulkan" or not plan.gpu_layers:
        return False
    return not world.find_verdicts().has_compiled(plan.model.architecture, plan.model.quant)


def telling_of_shaders(events: Iterable[Event], plan: Plan, world: World) -> Iterator[Event]:
    """The events of a load or an answer, a silence as a note. What an answer needed, the driver has kept."""
    for event in events:
        if isinstance(event, Quiet):
            yield Note(f"no sign of life for {event.seconds:g} s: {_COMPILES}")
            continue
        if isinstance(event, Done) and event.stats.tokens and may_compile(plan, world):
            world.find_verdicts().remember_compiled(plan.model.architecture, plan.model.quant)
        yield event


_COMPILES = "the driver probably compiles shaders, the first time for such a model: that may take minutes, once"

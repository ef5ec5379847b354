"""How an engine comes to hold a planned model: the part that `run` and `chat` share. Prints nothing."""

import dataclasses
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from tokencli.app.pace import known_pace
from tokencli.app.world import World, planner_here, read_draft, read_model, seconds_left
from tokencli.core import OWN_TEMPLATE, Event, Loaded, Note, Plan, Planned
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed
from tokencli.plan.choose import Wishes
from tokencli.plan.sizes import ModelFile


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine that holds a model, the plan as it was carried out, and what llama.cpp said of it. Close the engine later."""

    engine: Engine
    plan: Plan
    loaded: Loaded


@dataclass(frozen=True, slots=True)
class _Attempt:
    """All that stays the same when the engine has to be started again."""

    has_template: bool

    target: ModelFile
    draft: ModelFile | None
    wishes: Wishes
    notes: tuple[str, ...]
    deadline: float | None
    world: World

    def with_engine(self, engine: Engine, extra_buffers: bool) -> Generator[Event, None, Opened | EngineCrashed]:
        """A crash at the first decode with extra buffers is a result: there is something else to try (FACTS: AMX)."""
        try:
            planner = planner_here(engine, self.target, self.draft, extra_buffers, self.deadline, self.world)
            plan = planner.plan(self.wishes)
            yield from (Note(note) for note in plan.notes)
            plan = dataclasses.replace(plan, notes=(*self.notes, *plan.notes))
            return (yield from self._load(engine, plan))
        except EngineCrashed as crash:
            if not (extra_buffers and engine.crashed_in_first_decode):
                raise
            return crash

    def _load(self, engine: Engine, plan: Plan) -> Generator[Event, None, Opened]:
        result = None
        for event in engine.load(plan, seconds_left(self.deadline, self.world), known_pace(plan, self.world)):
            yield event
            if isinstance(event, Loaded):
                placed = as_loaded(plan, event, self.has_template)
                yield from (Note(note) for note in placed.notes[len(plan.notes) :])
                yield Planned(placed)
                result = Opened(engine, placed, event)
        assert result
        return result


def opened(
    model: str, wishes: Wishes, world: World, deadline: float | None = None, has_template: bool = False
) -> Generator[Event, None, Opened]:
    """Plan and load, telling notes, Loading, Loaded and Planned. Raises a TokencliError; no engine is left then.

    `has_template`: a chat template comes with the requests, so it does not matter whether the model has one.
    """
    target = read_model(model, world)
    draft, notes = read_draft(wishes.draft, target, world)
    yield from (Note(note) for note in notes)
    attempt = _Attempt(has_template, target, draft, wishes, tuple(notes), deadline, world)
    memory = world.find_verdicts()
    engine = world.start_engine()
    try:
        result = yield from attempt.with_engine(engine, not memory.extra_buffers_crash())
        if isinstance(result, Opened):
            return result
        yield Note(f"{result.what}; trying once more without the CPU's extra buffers")
        engine.close()
        engine = world.start_engine()
        result = yield from attempt.with_engine(engine, False)
        assert isinstance(result, Opened)
        memory.remember_extra_buffers_crash()
        return result
    except BaseException:
        engine.close()
        raise


def as_loaded(plan: Plan, loaded: Loaded, has_template: bool = False) -> Plan:
    """The plan with what llama.cpp really did: where the buffers landed, and a note where that is not what was asked."""
    notes = [] if has_template else list(_template_notes(loaded.template))
    notes += loaded.notes
    on_device = {place.id for place in loaded.devices if place.weights}
    if plan.gpu_layers and plan.device not in on_device:
        notes.append(f"nothing was put on {plan.device}: the model runs on the CPU")
    elif loaded.gpu_layers < plan.gpu_layers:
        notes.append(f"only {loaded.gpu_layers} of the {plan.gpu_layers} layers asked for are on {plan.device}")
    return dataclasses.replace(
        plan,
        gpu_layers=loaded.gpu_layers,
        context=loaded.context,
        draft=plan.draft if loaded.draft else None,
        devices=loaded.devices,
        notes=(*plan.notes, *notes),
    )


def _template_notes(template: str | None) -> Iterator[str]:
    if template is None:
        yield "this model has no chat template: the prompt is continued as plain text"
    elif template != OWN_TEMPLATE:
        yield f"this model has no chat template: taken for {template} by its control tokens"

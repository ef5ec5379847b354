"""The story of `run`: wires what is found in the world to the pure decisions and to the engine. Prints nothing."""

import dataclasses
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokencli.app.fetch import at_hand
from tokencli.app.world import World, planner_here, seconds_left
from tokencli.core import Done, Event, Loaded, Message, Note, Plan, Planned, Request, Sampling
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed, UsageError
from tokencli.plan.choose import Wishes


@dataclass(frozen=True, slots=True)
class Question:
    """One `run`: the model by name, the prompt, and all that was asked for with it."""

    model: str
    prompt: str
    system: str | None = None
    wishes: Wishes = field(default_factory=Wishes)
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    timeout: float | None = None
    stop: tuple[str, ...] = ()
    show_draft: bool = False

    @property
    def request(self) -> Request:
        system = (Message("system", self.system),) if self.system else ()
        return Request((*system, Message("user", self.prompt)), self.sampling, self.max_tokens, self.stop, self.show_draft)


def random_seed() -> int:
    """A seed nobody chose: 32 bits, so that it can be read and typed again."""
    return secrets.randbits(32)


def run(question: Question, world: World) -> Iterator[Event]:
    """One answer as events: notes, Planned, Loading, Loaded, Prefilling, Text, and Done at the end. Close it to stop.

    Raises a TokencliError for all that goes wrong; text already yielded stays valid.
    """
    if not question.prompt.strip():
        raise UsageError("the prompt is empty", 'give some text: tokencli run MODEL "a question"')
    target, draft, notes = yield from at_hand(question.model, question.wishes, world)
    deadline = None if question.timeout is None else world.now() + question.timeout
    yield from (Note(note) for note in notes)
    memory = world.find_verdicts()
    extra_buffers = not memory.extra_buffers_crash()
    tried_again = False
    while True:
        with world.start_engine() as engine:
            try:
                plan = planner_here(engine, target, draft, extra_buffers, deadline, world).plan(question.wishes)
                plan = dataclasses.replace(plan, notes=(*notes, *plan.notes))
                yield from (Note(note) for note in plan.notes[len(notes) :])
                yield from _load(engine, plan, seconds_left(deadline, world))
            except EngineCrashed as crash:
                if tried_again or not (extra_buffers and engine.crashed_in_first_decode):
                    raise
                yield Note(f"{crash.what}; trying once more without the CPU's extra buffers")
                extra_buffers, tried_again = False, True
                continue
            if tried_again:
                memory.remember_extra_buffers_crash()
            for event in engine.generate(question.request, seconds_left(deadline, world)):
                if isinstance(event, Done):
                    yield from (Note(note) for note in event.notes)
                yield event
            return


def _load(engine: Engine, plan: Plan, timeout: float | None) -> Iterator[Event]:
    for event in engine.load(plan, timeout):
        yield event
        if isinstance(event, Loaded):
            placed = as_loaded(plan, event)
            yield from (Note(note) for note in placed.notes[len(plan.notes) :])
            yield Planned(placed)


def as_loaded(plan: Plan, loaded: Loaded) -> Plan:
    """The plan with what llama.cpp really did: where the buffers landed, and a note where that is not what was asked."""
    notes = list(loaded.notes)
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

"""The story of each command: wires what is found in the world to the pure decisions and to the engine. Prints nothing."""

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokencli.core import Event, Loaded, Message, Note, Plan, Planned, Request, Sampling
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed, EngineTimeout, UsageError
from tokencli.plan.planner import Wishes, make_plan
from tokencli.world import catalogue, gguf_file, machine, verdicts


@dataclass(frozen=True, slots=True)
class World:
    """What the stories reach for outside: replaced in tests by fakes that keep these signatures."""

    start_engine: Callable[[], Engine] = Engine
    find_verdicts: Callable[[], verdicts.Verdicts] = verdicts.for_this_machine
    cores: Callable[[], int] = machine.usable_cores
    now: Callable[[], float] = time.monotonic
    data: Path = field(default_factory=catalogue.data_folder)


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

    @property
    def request(self) -> Request:
        system = (Message("system", self.system),) if self.system else ()
        return Request((*system, Message("user", self.prompt)), self.sampling, self.max_tokens, self.stop)


def random_seed() -> int:
    """A seed nobody chose: 32 bits, so that it can be read and typed again."""
    return secrets.randbits(32)


def run(question: Question, world: World) -> Iterator[Event]:
    """One answer as events: notes, Planned, Loading, Loaded, Prefilling, Text, and Done at the end. Close it to stop.

    Raises a TokencliError for all that goes wrong; text already yielded stays valid.
    """
    if not question.prompt.strip():
        raise UsageError("the prompt is empty", 'give some text: tokencli run MODEL "a question"')
    path = catalogue.resolve(question.model, catalogue.read_catalogue(world.data))
    model = gguf_file.read_model(path, question.model)
    deadline = None if question.timeout is None else world.now() + question.timeout
    memory = world.find_verdicts()
    extra_buffers = not memory.extra_buffers_crash()
    tried_again = False
    while True:
        with world.start_engine() as engine:
            devices = engine.devices(_left(deadline, world))
            plan = make_plan(model, devices, question.wishes, cores=world.cores(), extra_buffers=extra_buffers)
            try:
                yield from _load(engine, plan, _left(deadline, world))
            except EngineCrashed as crash:
                if tried_again or not (extra_buffers and engine.crashed_in_first_decode):
                    raise
                yield Note(f"{crash.what}; trying once more without the CPU's extra buffers")
                extra_buffers, tried_again = False, True
                continue
            if tried_again:
                memory.remember_extra_buffers_crash()
            yield from engine.generate(question.request, _left(deadline, world))
            return


def _load(engine: Engine, plan: Plan, timeout: float | None) -> Iterator[Event]:
    for note in plan.notes:
        yield Note(note)
    for event in engine.load(plan, timeout):
        yield event
        if isinstance(event, Loaded):
            placed = as_loaded(plan, event)
            for note in placed.notes[len(plan.notes) :]:
                yield Note(note)
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
        devices=loaded.devices,
        notes=(*plan.notes, *notes),
    )


def _left(deadline: float | None, world: World) -> float | None:
    """Seconds until the deadline. Raises EngineTimeout when it has passed."""
    if deadline is None:
        return None
    left = deadline - world.now()
    if left <= 0:
        raise EngineTimeout("the time allowed ended before the model was loaded", "give --timeout more seconds")
    return left

"""The story of each command: wires what is found in the world to the pure decisions and to the engine. Prints nothing."""

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokencli.core import Device, DeviceBytes, Done, Event, Loaded, Machine, Message, Note, Plan, Planned, Request, Sampling
from tokencli.engine.client import Engine
from tokencli.errors import EngineCrashed, EngineTimeout, ModelUnavailable, UsageError
from tokencli.plan.choose import Wishes
from tokencli.plan.memory import HOST, host_weights, mapped_bytes
from tokencli.plan.model_info import model_info
from tokencli.plan.planner import Decision, Planner
from tokencli.plan.sizes import ModelFile
from tokencli.world import catalogue, gguf_file, machine, settings, verdicts

NOT_A_MODEL = (None, "auto", "off", "ngram")


@dataclass(frozen=True, slots=True)
class World:
    """What the stories reach for outside: replaced in tests by fakes that keep these signatures."""

    start_engine: Callable[[], Engine] = Engine
    find_verdicts: Callable[[], verdicts.Verdicts] = verdicts.for_this_machine
    read_machine: Callable[[list[Device]], Machine] = machine.read_machine
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
    deadline = None if question.timeout is None else world.now() + question.timeout
    target = read_model(question.model, world)
    draft, notes = read_draft(question.wishes.draft, target, world)
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
                yield from _load(engine, plan, _left(deadline, world))
            except EngineCrashed as crash:
                if tried_again or not (extra_buffers and engine.crashed_in_first_decode):
                    raise
                yield Note(f"{crash.what}; trying once more without the CPU's extra buffers")
                extra_buffers, tried_again = False, True
                continue
            if tried_again:
                memory.remember_extra_buffers_crash()
            for event in engine.generate(question.request, _left(deadline, world)):
                if isinstance(event, Done):
                    yield from (Note(note) for note in event.notes)
                yield event
            return


@dataclass(frozen=True, slots=True)
class Check:
    """Predicted bytes of one term on one device, and what llama.cpp says of it."""

    device: str
    term: str
    predicted: int
    actual: int


def plan(model: str, wishes: Wishes, machine_name: str | None, world: World) -> Decision:
    """What would be run, here or on the machine named: nothing is loaded. Raises DoesNotFit with the change that would help."""
    target = read_model(model, world)
    draft, notes = read_draft(wishes.draft, target, world)
    with world.start_engine() as engine:
        if machine_name is None:
            planner = planner_here(engine, target, draft, not world.find_verdicts().extra_buffers_crash(), None, world)
        else:
            elsewhere = machine.read_snapshot(machine_name, world.data)
            profiles = settings.read_profiles(world.data)
            planner = Planner(target, elsewhere, profiles, lambda each: dry_run_elsewhere(engine, each), draft)
            notes.append(ESTIMATED)
        decision = planner.decide(wishes)
    decided = dataclasses.replace(decision.plan, notes=(*notes, *decision.plan.notes))
    return dataclasses.replace(decision, plan=decided)


ESTIMATED = (
    "compute buffers are an estimate for a device that is not here: the CPU's dry run, a quarter added where a part is offloaded"
)


def dry_run_elsewhere(engine: Engine, plan: Plan) -> tuple[DeviceBytes, ...]:
    """The CPU's dry run, booked to the plan's device (FACTS: 8B shape 112 MiB on the CPU, 96 to 116 on lavapipe)."""
    draft = dataclasses.replace(plan.draft, device=None) if plan.draft else None
    (found,) = engine.dry_run(dataclasses.replace(plan, device=None, gpu_layers=0, draft=draft))
    if not plan.device:
        return (found,)
    partial = plan.gpu_layers < plan.model.offloadable_layers
    compute = found.compute * 5 // 4 if partial else found.compute
    on_host = dataclasses.replace(found, compute=found.compute if partial else 0)
    return on_host, DeviceBytes(plan.device, "gpu", compute=compute)


def check(model: str, wishes: Wishes, world: World) -> tuple[Plan, list[Check]]:
    """The plan, loaded for real, and its terms beside what llama.cpp's buffers say.

    llama.cpp logs the mapped range of the file as the host's weights, with what is on the device in between: so do we here.
    """
    decided = plan(model, wishes, None, world).plan
    with world.start_engine() as engine:
        *_, loaded = engine.load(decided)
    assert isinstance(loaded, Loaded)
    header = gguf_file.read_header(Path(decided.model.file))
    between = mapped_bytes(header, decided.gpu_layers) - host_weights(model_info(header), decided.gpu_layers)
    places = (
        dataclasses.replace(place, weights=place.weights + between) if place.id == HOST else place for place in decided.devices
    )
    return decided, compared(tuple(places), loaded.devices)


def compared(predicted: tuple[DeviceBytes, ...], actual: tuple[DeviceBytes, ...]) -> list[Check]:
    """Term by term, for every device that either side names."""
    ours, theirs = ({place.id: place for place in places} for places in (predicted, actual))
    none = DeviceBytes("", "cpu")
    return [
        Check(device, term, getattr(ours.get(device, none), term), getattr(theirs.get(device, none), term))
        for device in sorted(ours | theirs)
        for term in ("weights", "kv", "recurrent", "compute", "output")
        if getattr(ours.get(device, none), term) or getattr(theirs.get(device, none), term)
    ]


def read_model(name: str, world: World) -> ModelFile:
    """The model that a user calls `name`: file and header. Raises ModelNotFound, BadModelFile."""
    path = catalogue.resolve(name, catalogue.read_catalogue(world.data))
    info = model_info(gguf_file.read_header(path))
    return ModelFile.of(info, str(path), name)


def read_draft(name: str | None, target: ModelFile, world: World) -> tuple[ModelFile | None, list[str]]:
    """The draft model asked for, or None with the reason why the answer goes on without it."""
    if name in NOT_A_MODEL:
        return None, []
    assert name
    try:
        draft = read_model(name, world)
    except ModelUnavailable as error:
        return None, [f"without the draft: {error.what}"]
    if draft.info.weight_bytes > target.info.weight_bytes:
        return None, [f"without the draft: {name} is larger than the model it would draft for, it cannot pay"]
    difference = gguf_file.vocabulary_difference(Path(target.model.file), Path(draft.model.file))
    if difference:
        return None, [f"without the draft: its vocabulary is not the model's: {difference}"]
    return draft, []


def planner_here(
    engine: Engine, target: ModelFile, draft: ModelFile | None, extra_buffers: bool, deadline: float | None, world: World
) -> Planner:
    """What plans for this computer, as the engine sees it."""
    return Planner(
        target,
        world.read_machine(engine.devices(_left(deadline, world))),
        settings.read_profiles(world.data),
        lambda plan: engine.dry_run(plan, _left(deadline, world)),
        draft,
        extra_buffers,
    )


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


def _left(deadline: float | None, world: World) -> float | None:
    """Seconds until the deadline. Raises EngineTimeout when it has passed."""
    if deadline is None:
        return None
    left = deadline - world.now()
    if left <= 0:
        raise EngineTimeout("the time allowed ended before the model was loaded", "give --timeout more seconds")
    return left

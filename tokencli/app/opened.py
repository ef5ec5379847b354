"""How an engine comes to hold a planned model: the part that `run` and `chat` share. Prints nothing."""

import dataclasses
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from tokencli.app.fetch import Models, at_hand
from tokencli.app.isolation import AS_IT_IS, NO_GPU, NO_MATRICES, Started, started
from tokencli.app.ladder import FAILURES, Ladder, Step, is_of_a_driver, is_of_memory
from tokencli.app.pace import known_pace
from tokencli.app.remembered import remembering
from tokencli.app.shaders import may_compile, telling_of_shaders
from tokencli.app.world import World, is_late, planner_here, seconds_left
from tokencli.core import OWN_TEMPLATE, Device, Event, Loaded, Machine, Note, Plan, Planned
from tokencli.engine.client import Engine
from tokencli.errors import TokencliError
from tokencli.plan.choose import Wishes
from tokencli.plan.memory import placed
from tokencli.plan.planner import Planner


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine that holds a model, the plan as it was carried out, and what llama.cpp said of it. Close the engine later.

    `wishes`: what was asked for in the end, after the steps that it took to load.
    """

    engine: Engine
    plan: Plan
    loaded: Loaded
    wishes: Wishes
    machine: Machine
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class _Refused:
    """A plan that nobody had asked for, and that its device did not hold."""

    device: Device
    bytes: int


class _Opening:
    """The way from a model and wishes to a loaded engine, over as many plans as it takes."""

    def __init__(self, models: Models, wishes: Wishes, world: World, deadline: float | None, has_template: bool) -> None:
        self._world, self._deadline, self._has_template = world, deadline, has_template
        self._wishes = wishes
        self._target, self._draft, self._notes = models
        self._verdicts = world.find_verdicts()
        self._ladder = Ladder(self._target.info.trunk_layers if self._target.info.experts else 0)
        self._told: set[str] = set()
        self._mode = AS_IT_IS
        self._extra_buffers = not self._verdicts.extra_buffers_crash()
        self._planner: Planner | None = None
        self._plan: Plan | None = None
        self._crashed: set[str] = set()  # how plans without a GPU crashed
        self._last_step, self._teaches = "", True
        self._refused: _Refused | None = None

    def opened(self) -> Generator[Event, None, Opened]:
        yield from self._tell(self._notes)
        while True:
            begun = started(self._world, self._wishes, self._deadline, self._mode)
            try:
                result = yield from self._attempt(begun)
                self._remember(result.plan)
                return result
            except FAILURES as failure:
                begun.engine.close()
                step = self._next(failure, begun)
                yield Note(f"{failure.what}; trying once more{step.words}")
                self._wishes, self._last_step = step.wishes, step.words
            except BaseException:
                begun.engine.close()
                raise

    def _attempt(self, begun: Started) -> Generator[Event, None, Opened]:
        yield from self._tell(begun.notes)
        self._notes += [note for note in begun.notes if note not in self._notes]
        draft = self._draft if self._wishes.draft != "off" else None
        self._planner = self._plan = None
        self._planner = planner_here(
            begun.engine, self._target, draft, self._extra_buffers, self._deadline, self._world, begun.meter
        )
        self._plan = plan = self._planner.plan(self._wishes)
        yield from self._tell(plan.notes)
        plan = dataclasses.replace(plan, notes=(*self._notes, *plan.notes))
        result = None
        if may_compile(plan, self._world):
            begun.engine.expect_compiling()
        loading = begun.engine.load(plan, seconds_left(self._deadline, self._world), known_pace(plan, self._world))
        for event in telling_of_shaders(loading, plan, self._world):
            yield event
            if isinstance(event, Loaded):
                loaded = as_loaded(plan, event, self._has_template)
                yield from (Note(note) for note in loaded.notes[len(plan.notes) :])
                yield Planned(loaded)
                result = Opened(begun.engine, loaded, event, self._wishes, self._planner.machine, self._deadline)
        assert result
        return result

    def _tell(self, notes: Iterable[str]) -> Iterator[Note]:
        """Each note once, however many plans have it."""
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                yield Note(note)

    def _next(self, failure: TokencliError, begun: Started) -> Step:
        """The step after a failed attempt. Raises the failure where there is none."""
        if is_late(self._deadline, self._world):
            raise failure
        if is_of_memory(failure):
            step = self._smaller(failure)
        elif self._extra_buffers and begun.engine.crashed_in_first_decode and self._computes_on_the_cpu:
            self._extra_buffers = False  # FACTS: AMX and GCC 12
            self._once(failure)
            step = Step(self._wishes, _NO_EXTRA_BUFFERS)
        else:
            step = self._safer(failure)
        if step is None:
            raise failure
        return step

    @property
    def _computes_on_the_cpu(self) -> bool:
        plan = self._plan
        return plan is None or plan.gpu_layers < plan.model.offloadable_layers or plan.cpu_moe_layers > 0

    def _smaller(self, failure: TokencliError) -> Step | None:
        if self._plan and self._plan.device and self._planner and self._wishes.gpu_layers is None:
            device = next(each for each in self._planner.machine.devices if each.id == self._plan.device)
            self._refused = _Refused(device, self._on(self._plan, device.id))
        return self._ladder.after(failure, self._plan, self._wishes)

    def _safer(self, failure: TokencliError) -> Step | None:
        """After a crash or a hang: Vulkan without what its drivers crash with most (report A1-32), then the CPU."""
        on_gpu = self._plan.gpu_layers > 0 if self._plan else self._planner is not None  # only GPUs are asked for sizes
        if not on_gpu:
            self._once(failure)
        step = self._ladder.after(failure, self._plan, self._wishes)
        if step and on_gpu and self._mode == AS_IT_IS and "vulkan" in (self._world.backends() or ()):
            self._mode, self._teaches = NO_MATRICES, is_of_a_driver(failure)
            return Step(step.wishes, f" {NO_MATRICES}")
        if step and step.wishes.gpu_layers == 0:
            self._mode = NO_GPU
        return step

    def _once(self, failure: TokencliError) -> None:
        """Raises the failure of a plan without a GPU where it has come before: a third time would be no other."""
        how = failure.what.partition(":")[0]
        if how in self._crashed:
            raise type(failure)(f"{failure.what} (twice in the same way)", failure.hint, failure.log)
        self._crashed.add(how)

    def _remember(self, plan: Plan) -> None:
        """What helped, for the next plan."""
        if self._last_step == _NO_EXTRA_BUFFERS:
            self._verdicts.remember_extra_buffers_crash()
        if self._last_step == f" {NO_MATRICES}" and self._teaches:
            self._verdicts.remember_mode(NO_MATRICES)
        if self._refused:
            name, architecture = self._refused.device.description, plan.model.architecture
            missed = self._refused.bytes - self._on(plan, self._refused.device.id)
            missed = max(0, min(missed, self._refused.bytes // 2))  # little by little: another program may have come between
            self._verdicts.remember_margin(name, architecture, self._verdicts.margin(name, architecture) + missed)

    def _on(self, plan: Plan, device: str) -> int:
        """Bytes of a plan on a device, compute buffers not counted."""
        assert self._planner
        return sum(place.total for place in placed(plan, self._planner.info_for(plan)) if place.id == device)


def opened(
    model: str,
    wishes: Wishes,
    world: World,
    timeout: float | None = None,
    has_template: bool = False,
    deadline: float | None = None,
) -> Generator[Event, None, Opened]:
    """Fetch, plan and load, telling notes, Fetching, Loading, Loaded and Planned; a plan that fails leads to the next one, each
    told in a line. Raises a TokencliError; no engine is left then.

    `timeout`: seconds for all but the fetching; the result's `deadline` is their end, and may be given instead. `has_template`:
    a chat template comes with the requests, so it does not matter whether the model has one.
    """
    models = yield from at_hand(model, wishes, world)
    world = remembering(models[0], world)
    if deadline is None and timeout is not None:
        deadline = world.now() + timeout
    return (yield from _Opening(models, wishes, world, deadline, has_template).opened())


_NO_EXTRA_BUFFERS = " without the CPU's extra buffers"


def as_loaded(plan: Plan, loaded: Loaded, has_template: bool = False) -> Plan:
    """The plan with what llama.cpp really did: where the buffers landed, and a note where that is not what was asked."""
    notes = [] if has_template else list(_template_notes(loaded.template))
    notes += loaded.notes
    on_device = {place.id for place in loaded.devices if place.weights}
    if plan.gpu_layers and plan.device not in on_device:
        notes.append(f"nothing was put on {plan.device}: the model runs on the CPU")
    elif loaded.gpu_layers < plan.gpu_layers:
        notes.append(f"only {loaded.gpu_layers} of the {plan.gpu_layers} layers asked for are on {plan.device}")
    if loaded.flash_attention == "off" and plan.flash_attention != "off":
        where = plan.device or "the CPU"
        notes.append(f"flash attention is off: {where} has none for this model, and attention takes more memory and time")
    return dataclasses.replace(
        plan,
        flash_attention=loaded.flash_attention or plan.flash_attention,
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

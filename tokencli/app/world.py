"""What the stories of all commands share: what they reach for outside, and how a model, a draft and a planner come about."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokencli.app.calibrated import speeds_here
from tokencli.app.find import find
from tokencli.app.losses import with_losses
from tokencli.app.remembered import Remembered
from tokencli.core import Device, DryRun, Holder, Machine, Plan, Strain
from tokencli.engine.client import Engine
from tokencli.errors import EngineTimeout, ModelUnavailable, UsageError
from tokencli.listing import Variant
from tokencli.plan.choose import Wishes
from tokencli.plan.model_info import model_info
from tokencli.plan.planner import Planner
from tokencli.plan.quants import size
from tokencli.plan.sizes import ModelFile, asked_once
from tokencli.world import catalogue, energy, gguf_file, settings, verdicts
from tokencli.world import machine as machines
from tokencli.world.calibrated import CalibrationFile
from tokencli.world.ghost import Ghosts
from tokencli.world.holders import read_holders
from tokencli.world.hollow import Hollows
from tokencli.world.hub import Hub
from tokencli.world.load import LoadMeter
from tokencli.world.losses import LossesFile
from tokencli.world.owner import owner
from tokencli.world.pins import Pins
from tokencli.world.scratch import Scratch
from tokencli.world.sessions import Sessions, sessions_file
from tokencli.world.states import States, states_folder
from tokencli.world.strain import read_strain
from tokencli.world.tuned import TunedFile

NOT_A_MODEL = (None, "auto", "off", "ngram")


def cache_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("tokencli")


def tuned_file() -> TunedFile:
    import platformdirs

    return TunedFile(platformdirs.user_config_path("tokencli") / "tuned.toml")


def losses_file() -> LossesFile:
    import platformdirs

    return LossesFile(platformdirs.user_config_path("tokencli") / "losses.toml")


def own_catalogue() -> Path:
    import platformdirs

    return platformdirs.user_config_path("tokencli") / "models.toml"


def nobody_to_ask(question: str) -> bool:
    raise UsageError(question, "nobody can be asked here: add --yes to download it")


@dataclass(frozen=True, slots=True)
class World:
    """What the stories reach for outside: replaced in tests by fakes that keep these signatures.

    `confirm` asks the user; it raises UsageError where there is none to ask.
    """

    start_engine: Callable[[], Engine] = Engine
    start_safer_engine: Callable[[Mapping[str, str]], Engine] = lambda environment: Engine(environment=environment)
    find_verdicts: Callable[[], verdicts.Verdicts] = verdicts.for_this_machine
    read_machine: Callable[[list[Device]], Machine] = machines.read_machine
    start_meter: Callable[[int], LoadMeter] = LoadMeter.start
    read_holders: Callable[[], tuple[Holder, ...]] = read_holders
    read_strain: Callable[[int], Strain] = read_strain
    owner: Callable[[], Mapping[str, str]] = owner
    gpus_asleep: Callable[[], bool] = machines.gpus_asleep
    backends: Callable[[], tuple[str, ...] | None] = machines.backends
    probe_seconds: float = 60.0  # for listing devices and a dry run: a sleeping card takes some to wake
    now: Callable[[], float] = time.monotonic
    energy_sensors: Callable[[], tuple[energy.Sensor, ...]] = energy.sensors
    open_sessions: Callable[[], Sessions] = lambda: Sessions.open(sessions_file())
    open_states: Callable[[], States] = lambda: States(states_folder())
    data: Path = field(default_factory=catalogue.data_folder)
    cache: Path = field(default_factory=cache_folder)
    own: Path = field(default_factory=own_catalogue)
    hub: Hub = field(default_factory=Hub)
    pins: Pins = field(default_factory=Pins.of_user)
    confirm: Callable[[str], bool] = nobody_to_ask
    tuned_file: TunedFile = field(default_factory=tuned_file)
    tuned: Remembered | None = None
    losses: LossesFile = field(default_factory=losses_file)

    @property
    def calibrations(self) -> CalibrationFile:
        return CalibrationFile(self.tuned_file.file.with_name("calibrated.toml"))

    @property
    def hollows(self) -> Hollows:
        return Hollows(self.cache / "headers")

    @property
    def scratch(self) -> Scratch:
        return Scratch(self.cache / "scratch", self.hub.free)

    def catalogue(self) -> dict[str, catalogue.Entry]:
        return catalogue.read_catalogue(self.data, self.own)

    def engine(self, environment: Mapping[str, str]) -> Engine:
        """A new engine, with these variables added to its environment, and those that were fastest."""
        environment = {**(self.tuned.environment if self.tuned else {}), **environment}
        return self.start_safer_engine(environment) if environment else self.start_engine()


def read_model(
    name: str, world: World, quant: str | None = None, *, hollow: bool = False, taken: Variant | None = None
) -> ModelFile:
    """The model that a user calls `name`: file and header. One of the hub that is not fetched only where `hollow` will do.

    `taken`: of what is offered the one that was decided for.

    Raises ModelNotFound, BadModelFile, and ModelUnavailable for what is not fetched: app/fetch.py does that.
    """
    found = find(name, world, quant, taken)
    if found.hub and not found.hub.fetched and not hollow:
        raise ModelUnavailable(f"{name} is not downloaded", f"tokencli models pull {name}")
    info = model_info(gguf_file.read_header(found.path))
    info = dataclasses.replace(info, quant=found.quant or info.quant)
    file = ModelFile.of(info, str(found.path), name)
    file = dataclasses.replace(file, hub=found.hub, notes=found.notes, offered=found.offered)
    return file if file.hub and not file.hub.fetched else with_losses(file, world.losses)


def chosen(planner: Planner, name: str, wishes: Wishes, world: World) -> Planner:
    """What plans for the quant that goes best with all the rest, where the user named none, and none is here or several are."""
    target = planner.target
    if not target.offered:
        return planner
    best = planner.choose(wishes)
    count = len(target.offered)
    note = f"took {best.quant} ({size(best.model.bytes)}) of {count} for {name}: the best plan for this machine"
    if best is not target:
        target = dataclasses.replace(read_model(name, world, hollow=True, taken=best.offered[0]), offered=target.offered)
    return dataclasses.replace(planner, target=dataclasses.replace(target, notes=(f"{note}; --quant takes another",)))


def read_draft(name: str | None, target: ModelFile, world: World) -> tuple[ModelFile | None, list[str]]:
    """The draft model asked for, or None with the reason why the answer goes on without it. Not fetched, if it is of the hub."""
    if name in NOT_A_MODEL:
        return None, []
    assert name
    try:
        draft = read_model(name, world, hollow=True)
    except ModelUnavailable as error:
        return None, [f"without the draft: {error.what}"]
    if draft.info.weight_bytes > target.info.weight_bytes:
        return None, [f"without the draft: {name} is larger than the model it would draft for, it cannot pay"]
    difference = gguf_file.vocabulary_difference(Path(target.model.file), Path(draft.model.file))
    if difference:
        return None, [f"without the draft: its vocabulary is not the model's: {difference}"]
    return draft, []


def planner_here(
    engine: Engine,
    target: ModelFile,
    draft: ModelFile | None,
    extra_buffers: bool,
    deadline: float | None,
    world: World,
    meter: LoadMeter | None = None,
) -> Planner:
    """What plans for this computer, as the engine sees it. `meter`: begun with the engine, so that it saw a moment."""
    meter = meter or world.start_meter(engine.process_id)
    machine = world.read_machine(engine.devices(seconds_left(deadline, world)))
    bandwidth = machines.remembered_bandwidth(machine, world.cache)
    memory = world.find_verdicts()
    return Planner(
        target,
        dataclasses.replace(machine, busy_cores=meter.busy_cores(), memory_bandwidth=bandwidth),
        settings.read_profiles(world.data),
        asked_once(lambda plan: dry_run(engine, plan, world, deadline).devices),
        draft,
        extra_buffers,
        functools.cache(lambda device: engine.tensor_limit(device, seconds_left(deadline, world))),
        speeds_here(machine.devices, world),
        lambda device: memory.margin(device.description, target.info.architecture),
        world.tuned.on(machine.devices) if world.tuned else None,
    )


def dry_run(engine: Engine, plan: Plan, world: World, deadline: float | None = None) -> DryRun:
    """llama.cpp's dry run of the plan on ghosts of its files: a large vocabulary costs a second otherwise. Raises EngineError."""
    with Ghosts(world.cache) as ghosts:
        draft = plan.draft
        if draft and draft.file:
            draft = dataclasses.replace(draft, file=str(ghosts.of_file(Path(draft.file))))
        model = dataclasses.replace(plan.model, file=str(ghosts.of_file(Path(plan.model.file))))
        planned = dataclasses.replace(plan, model=model, draft=draft)
        return engine.dry_run(planned, probe_time(deadline, world))


def is_late(deadline: float | None, world: World) -> bool:
    return deadline is not None and world.now() >= deadline


def probe_time(deadline: float | None, world: World) -> float:
    """Seconds that listing devices or a dry run may take. Raises EngineTimeout when the deadline has passed."""
    left = seconds_left(deadline, world)
    return world.probe_seconds if left is None else min(left, world.probe_seconds)


def seconds_left(deadline: float | None, world: World) -> float | None:
    """Seconds until the deadline. Raises EngineTimeout when it has passed."""
    if deadline is None:
        return None
    left = deadline - world.now()
    if left <= 0:
        raise EngineTimeout("the time allowed ended before the model was loaded", "give --timeout more seconds")
    return left

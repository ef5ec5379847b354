"""The end of `tune`: a few short runs, of the model and of yardsticks, from which the speed of any model here is predicted.

Prints nothing. What the runs say is found in tune/calibrate.py; predictions are made in plan/speed.py.
"""

import dataclasses
import datetime
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokencli.app.measuring import counted, request_of, text_of, timed
from tokencli.app.remembered import this_computer
from tokencli.app.world import World
from tokencli.core import Device, Machine, ModelInfo, Note, Plan, Speeds, Stats
from tokencli.engine.client import Engine
from tokencli.errors import DoesNotFit, EngineError
from tokencli.plan.model_info import model_info
from tokencli.plan.speed import reads
from tokencli.tune.calibrate import Fit, Run, fit
from tokencli.world import gguf_file, tuned
from tokencli.world.calibrated import Calibrated
from tokencli.world.yardstick import NARROW, WIDE, Shape, Yardsticks, layers_for

COMMON = ("Q8_0", "F16", "Q4_K", "Q6_K", "Q5_K", "Q4_0")  # types of most quants on offer
_SHARE = 0.15  # of a tune's budget: types that the model does not have are measured as long as that lasts
_SIZES = {"cpu": 160 << 20, "integrated": 160 << 20}  # bytes of a yardstick: more than caches hold
_LARGEST = 512 << 20
_PROMPT, _DEEP, _TOKENS, _ANSWERS = 48, 512, 16, 4
_DEEP_SECONDS = 3.0  # that the deeper prompt may take
_RUN_SECONDS = 4.0  # after which the answers of a run are enough
_LEAST_SPREAD = 0.05  # models differ by more than this noise: each counts about as much as another
_SMALL = 0.02
_LONGEST = 60.0  # seconds for a yardstick to load, and for an answer
_LEAST = 20 << 20  # a smaller model's token is mostly what every token costs besides
_TAKES = 2  # times a yardstick's bytes: what has to be free


@dataclass(frozen=True, slots=True)
class Own:
    """A model in a worker that holds it as a plan has it, or will when it is asked for. `environment`: the worker's."""

    engine: Callable[[], Engine]
    plan: Plan
    info: ModelInfo
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A device as it is calibrated: with all of a model on it. `plan`: whose settings are used, in such an environment."""

    device: Device
    plan: Plan
    environment: Mapping[str, str]

    @property
    def threads(self) -> int | None:
        return self.plan.threads if self.device.kind == "cpu" else None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.device.id, self.threads

    def plan_for(self, file: str, info: ModelInfo) -> Plan:
        model = dataclasses.replace(self.plan.model, file=file, layers=info.layers, bytes=info.file_bytes)
        layers = 0 if self.device.kind == "cpu" else model.offloadable_layers
        return dataclasses.replace(self.plan, model=model, gpu_layers=layers, cpu_moe_layers=0, draft=None, context=_DEEP)


@dataclass(frozen=True, slots=True)
class Learned:
    """What the runs on a device said."""

    device: str
    threads: int | None
    fit: Fit


Runs = Generator[Note, None, list[Run]]


def calibrate(
    own: Sequence[Own], machine: Machine, speeds: Speeds, budget: float, world: World
) -> Generator[Note, None, tuple[Learned, ...]]:
    """Measure each device that the plans use, and remember what was found. Raises EngineError, Interrupted, OSError."""
    learned: list[Learned] = []
    places = {place.key: place for each in own for place in _places(each, machine)}
    for place in places.values():
        runs = yield from _runs(place, own, machine, _SHARE * budget / len(places), world)
        rates = speeds.rates.get(f"{place.device.backend}.{place.device.kind}")
        layer = rates.layer_seconds if rates else 0.0
        fitted = fit(runs, *place.key, layer, place.device.bandwidth_bytes_per_second)
        learned.append(Learned(*place.key, fitted))
    if entries := [_entry(each.fit, machine, world) for each in learned if each.fit.calibration]:
        world.calibrations.put(entries)
    return tuple(learned)


# inside


def _places(own: Own, machine: Machine) -> Iterator[Place]:
    """The devices that a plan computes on."""
    plan = own.plan
    on_device = plan.device if plan.gpu_layers else None
    on_host = not on_device or plan.cpu_moe_layers or plan.gpu_layers < plan.model.offloadable_layers
    for device in machine.devices:
        if device.id == on_device:
            yield Place(device, plan, own.environment)
        elif device.kind == "cpu" and on_host:
            yield Place(device, dataclasses.replace(plan, device=None, backend="cpu", load_mode="auto"), own.environment)


def _alone(plan: Plan, place: Place) -> bool:
    """Whether all of the plan is computed there, as it is calibrated."""
    if place.device.kind == "cpu":
        return (not plan.device or not plan.gpu_layers) and plan.threads == place.threads
    whole = plan.gpu_layers == plan.model.offloadable_layers and not plan.cpu_moe_layers
    return plan.device == place.device.id and whole


def _runs(place: Place, own: Sequence[Own], machine: Machine, seconds: float, world: World) -> Runs:
    """The model before and after all else: a computer that slows down meanwhile does so for both."""
    models = [each for each in own if _alone(each.plan, place) and each.info.weight_bytes > _LEAST]
    yield Note(f"calibrating predictions for {place.device.id}: the model, then yardsticks of one tensor type each")
    runs = [run for each in models for run in _of_model(each, world.now)]
    size = _SIZES.get(place.device.kind, _LARGEST)
    if machine.ram_available_bytes < _TAKES * size:
        yield Note(f"no yardsticks: they need {_TAKES * size >> 20} MiB of free RAM")
        return runs
    with Yardsticks(world.cache) as yardsticks:
        for name, shape in _wanted(own[0].info, seconds, world.now):
            if shape == WIDE:
                shape = dataclasses.replace(shape, layers=layers_for(name, shape, size))
            try:
                runs.append(_of_yardstick(place, name, yardsticks.make(name, shape), world))
            except (EngineError, DoesNotFit) as error:
                yield Note(f"the speed of {name} was not measured: {error.what}")
    return runs + [_run(each, _PROMPT, world.now) for each in models]


def _wanted(info: ModelInfo, seconds: float, now: Callable[[], float]) -> Iterator[tuple[str, Shape]]:
    """The model's own types and what tells the cost of a layer, then others while the time lasts."""
    types = list(dict.fromkeys((*_main_types(info), COMMON[0])))
    yield from ((name, WIDE) for name in types)
    yield COMMON[0], NARROW
    began = now()
    for name in COMMON:
        if now() - began > seconds:
            return
        if name not in types:
            yield name, WIDE


def _main_types(info: ModelInfo) -> list[str]:
    """The model's own tensor types, the largest part first, without norms and biases."""
    total = sum(info.type_bytes.values())
    return sorted(
        (each for each, size in info.type_bytes.items() if size > 0.02 * total), key=lambda each: -info.type_bytes[each]
    )


def _of_yardstick(place: Place, name: str, file: Path, world: World) -> Run:
    info = model_info(gguf_file.read_header(file))
    plan = place.plan_for(str(file), info)
    with world.engine(place.environment) as engine:
        for _ in engine.load(plan, _LONGEST):
            pass
        return dataclasses.replace(_run(Own(lambda: engine, plan, info), _PROMPT, world.now), name=f"a yardstick of {name}")


def _of_model(own: Own, now: Callable[[], float]) -> Iterator[Run]:
    """Behind a short prompt, and what it takes more behind one as deep as can be read in a few seconds, once: that is the cache
    alone, however well the rest is met.
    """
    short = _run(own, _PROMPT, now)
    yield short
    rate = short.prompt_tokens / short.prompt_seconds if short.prompt_seconds else 0.0
    deep = min(_DEEP, own.plan.context - 2 * _TOKENS, int(_DEEP_SECONDS * rate))
    if deep > 2 * _PROMPT:
        whole = _run(own, deep, now, reuse=True)
        more, both = whole.seconds - short.seconds, whole.seconds + short.seconds
        spread = _LEAST_SPREAD * both / max(abs(more), 1e-9)
        yield Run("the model's cache", {}, 0, more, whole.cache - short.cache, spread)


def _run(own: Own, length: int, now: Callable[[], float], reuse: bool = False) -> Run:
    """The median of a few answers: what a user sees, not what is possible. Raises EngineError where they cannot be measured."""
    found = _answers(own, min(length, own.plan.context - 2 * _TOKENS), now, reuse)
    seconds = [1 / each.decode_tokens_per_second for each in found if each.decode_tokens_per_second]
    if not seconds:
        raise EngineError("its answers were too short to measure")
    usual = statistics.median(seconds)
    host, device = reads(own.plan, own.info, own.info, found[0].prompt_tokens + _TOKENS // 2)
    read = device if device.total else host
    total = sum(own.info.type_bytes.values())
    return Run(
        name="the model",
        weights={each: size / total * read.weights for each, size in own.info.type_bytes.items()},
        layers=read.steps,
        seconds=usual,
        cache=read.cache,
        spread=max(_LEAST_SPREAD, usual / min(seconds) - 1),
        prompt_tokens=found[0].prompt_tokens,
        prompt_weights=read.dense + read.experts,
        prompt_seconds=_prompt_seconds(found),
    )


def _answers(own: Own, length: int, now: Callable[[], float], reuse: bool) -> list[Stats]:
    """After one that warms up. `reuse`: the prompt is read only once."""
    engine = own.engine()
    asked = request_of(text_of(length, counted(engine)), _TOKENS)
    request = dataclasses.replace(asked, max_draft=0, reuse=reuse)
    timed(engine, dataclasses.replace(request, max_tokens=2), _LONGEST)
    began, found = now(), [timed(engine, request, _LONGEST).stats]
    while len(found) < _ANSWERS and now() - began < _RUN_SECONDS:
        found.append(timed(engine, request, _LONGEST).stats)
    return found


def _prompt_seconds(found: Sequence[Stats]) -> float | None:
    rates = [each.prefill_tokens_per_second for each in found if each.prefill_tokens_per_second]
    return found[0].prompt_tokens / max(rates) if rates else None


def _entry(fitted: Fit, machine: Machine, world: World) -> Calibrated:
    assert fitted.calibration
    return Calibrated(
        build=tuned.this_build(),
        computer=this_computer(world),
        devices=tuned.stamp(machine.devices),
        date=datetime.date.today().isoformat(),
        calibration=fitted.calibration,
        error=fitted.error,
    )

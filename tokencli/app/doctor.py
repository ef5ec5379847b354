"""The story of `doctor`: look at everything afresh, try each device on a real model, and say what to do. Prints nothing."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokencli.app.isolation import AS_IT_IS, MODES, NO_GPU, NO_MATRICES, started
from tokencli.app.ladder import FAILURES
from tokencli.app.models import listed
from tokencli.app.world import World, read_model
from tokencli.core import Device, Finding, Loaded, Machine, Message, Note, Plan, Request, Sampling, Text
from tokencli.errors import ModelUnavailable, TokencliError
from tokencli.plan.choose import is_software
from tokencli.plan.findings import by_cost, findings
from tokencli.plan.idle import more_if_closed
from tokencli.plan.sizes import ModelFile
from tokencli.world import machine as machines
from tokencli.world import settings
from tokencli.world.owner import without

DEMO = "smollm2-135m"
_TOKENS = 8
_SECONDS = 300.0  # per device: a first load compiles shaders (report A7-03)
_QUESTION = Request((Message("user", "Count to ten."),), Sampling(temperature=0), _TOKENS)


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    findings: tuple[Finding, ...]


def doctor(world: World, model: str = DEMO) -> Iterator[Note | Report]:
    """Notes of what goes on, then one Report. Raises EngineError where not even a CPU can be listed."""
    yield Note("looking at the devices")
    found = started(world, afresh=True)
    found.engine.close()
    machine = world.read_machine(list(found.devices))
    yield Note("measuring the memory's bandwidth")
    machine = dataclasses.replace(machine, memory_bandwidth=machines.measured_bandwidth(machine, world.cache))
    quirks = [quirk for profile in settings.read_profiles(world.data) for quirk in profile.quirks]
    said = [*_of_the_probe(found.notes), *findings(machine, quirks), *_of_memory_held(machine, world)]
    try:
        target = read_model(model, world)
    except ModelUnavailable as error:
        said.append(Finding("warn", f"no self-test: {error.what}", "pip install 'tokencli[demo]' brings a small model"))
    else:
        texts: list[str] = []
        for device in _tested(machine):
            yield Note(f"trying {device.id}")
            said.append(_SelfTest(target, machine, device, found.mode, world, texts).finding())
    yield _anonymous(machine, by_cost(said), world)


def _anonymous(machine: Machine, said: Iterable[Finding], world: World) -> Report:
    """To be shown to others: what came from files, paths and an engine's last words names no user, no folder, no computer."""
    words = world.owner()
    return Report(
        dataclasses.replace(machine, failed_probes=tuple(without(each, words) for each in machine.failed_probes)),
        tuple(Finding(each.level, without(each.what, words), without(each.hint, words)) for each in said),
    )


def forget(world: World) -> int:
    """Take back all that was remembered of failures; how much there was."""
    return world.find_verdicts().forget()


def _of_the_probe(notes: tuple[str, ...]) -> list[Finding]:
    return [Finding("warn", note, "update the driver; tokencli goes on without what fails") for note in notes]


def _of_memory_held(machine: Machine, world: World) -> Iterator[Finding]:
    sizes = {each.name: (each.bytes, each.active_share or 1.0) for each in listed(world) if each.bytes}
    profiles, speeds = settings.read_profiles(world.data), settings.read_speeds(world.data)
    yield from more_if_closed(sizes, machine, profiles, speeds, world.read_holders())


def _tested(machine: Machine) -> list[Device]:
    """The CPU first: its text is what the others are held against. Software devices are the CPU again."""
    order = sorted(machine.devices, key=lambda device: device.kind != "cpu")
    return [device for device in order if device.kind != "accelerator" and not is_software(device)]


class _SelfTest:
    """A few tokens of the demo model on one device, each try in a worker of its own."""

    def __init__(self, target: ModelFile, machine: Machine, device: Device, mode: str, world: World, texts: list[str]) -> None:
        self._target, self._device, self._mode, self._world = target, device, mode, world
        self._texts = texts  # what the devices before wrote
        self._threads = machine.threads
        self._verdicts = world.find_verdicts()

    def finding(self) -> Finding:
        safer = self._without_extra_buffers if self._device.kind == "cpu" else self._without_matrices
        try:
            return self._compared(self._text(AS_IT_IS, True))
        except FAILURES as failure:
            try:
                return safer(failure)
            except TokencliError as again:
                cure = "--device cpu works around it" if self._device.kind != "cpu" else "build llama.cpp anew: scripts/run"
                return Finding("fail", f"{self._device.id} failed its self-test: {again.what}", cure)
        except TokencliError as error:
            return Finding("fail", f"{self._device.id} failed its self-test: {error.what}", error.hint)

    def _compared(self, text: str) -> Finding:
        """Report A7-14: a driver may compute nonsense. Rounding alone can change a word, so a person has to judge."""
        before = self._texts[0] if self._texts else text
        if text == before:
            return Finding("pass", f"{self._device.id} answers: {text!r}")
        hint = "where it makes no sense, update the driver and use --device cpu until then"
        return Finding("warn", f"{self._device.id} answers otherwise than the CPU: {text!r}, not {before!r}", hint)

    def _without_extra_buffers(self, failure: TokencliError) -> Finding:
        """FACTS: AMX and GCC 12. Works without a rebuild, and is remembered."""
        text = self._text(AS_IT_IS, False)
        self._verdicts.remember_extra_buffers_crash()
        return Finding(
            "warn",
            f"this build crashes with the CPU's extra buffers ({failure.what}); it is used without them from now on: {text!r}",
            'a faster prefill needs a build by GCC 13 or newer, or with CFLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"',
        )

    def _without_matrices(self, failure: TokencliError) -> Finding:
        """Report A1-32."""
        if self._device.backend != "vulkan":
            raise failure
        text = self._text(NO_MATRICES, True)
        self._verdicts.remember_mode(NO_MATRICES)
        what = f"{self._device.id} fails but {NO_MATRICES} ({failure.what}); it is used so from now on: {text!r}"
        return Finding("warn", what, "update its driver, then tokencli doctor --forget")

    def _text(self, mode: str, extra_buffers: bool) -> str:
        """What the device writes. Raises a TokencliError."""
        with self._world.engine(MODES[mode or (NO_GPU if self._device.kind == "cpu" else self._mode)]) as engine:
            on_device = False
            for event in engine.load(self._plan(extra_buffers), _SECONDS):
                if isinstance(event, Loaded):
                    on_device = any(place.id == self._device.id and place.weights for place in event.devices)
            if self._device.kind != "cpu" and not on_device:
                raise TokencliError("llama.cpp put nothing on it", "see the findings above")
            text = "".join(event.text for event in engine.generate(_QUESTION, _SECONDS) if isinstance(event, Text))
        self._texts.append(text)
        return text

    def _plan(self, extra_buffers: bool) -> Plan:
        model, device = self._target.model, self._device
        on_gpu = device.kind != "cpu"
        return Plan(
            model=model,
            backend=device.backend,
            device=device.id if on_gpu else None,
            gpu_layers=model.offloadable_layers if on_gpu else 0,
            context=256,
            threads=self._threads,
            extra_buffers=extra_buffers and not (on_gpu and self._verdicts.extra_buffers_crash()),
        )

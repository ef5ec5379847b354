"""Which device, which profile, which draft: the choices that need no arithmetic, each with its reason. Pure."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tokencli.core import Device, Draft, Machine, Profile, Quirk
from tokencli.errors import UsageError
from tokencli.plan.settings import Settings, Tuned, first_given
from tokencli.plan.sizes import ModelFile

ALL = -1
_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "softpipe")
# Which backend runs a card that several list. Integrated GPUs: reports A1-05, A1-31, A7-16.
_BACKENDS = ("cuda", "rocm", "vulkan", "sycl")
_BACKENDS_INTEGRATED = ("vulkan", "rocm", "sycl")
_SAME_SIZE = 0.1
_MOST_STATES = 4  # 150 MiB each on a 27B hybrid (FACTS, Speculation)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for; None is "decide for me", ALL of `gpu_layers` or `cpu_moe` all; `device` is llama.cpp's name.

    `target_tps`: tokens per second that it must decode; `max_loss`: percent of perplexity that its quant may lose.
    """

    gpu_layers: int | None = None
    cpu_moe: int | None = None
    device: str | None = None
    profile: str | None = None
    context: int | None = None
    kv_type: str | None = None
    threads: int | None = None
    draft: str | None = None
    draft_tokens: int | None = None
    quant: str | None = None
    ubatch: int | None = None
    target_tps: float | None = None
    max_loss: float | None = None

    def flags(self) -> dict[str, object]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Something that was there and was not taken."""

    what: str
    why: str


def choose_device(machine: Machine, wishes: Wishes, quirks: Iterable[Quirk] = ()) -> Device | None:
    """The GPU to use, None for the CPU: discrete before integrated, software only by name or count (report A1-11)."""
    gpus = _gpus(machine)
    if wishes.device is not None:
        device = _named(wishes.device, gpus)
        if not device and wishes.gpu_layers:
            raise UsageError("--device cpu has no layers on a GPU, as --gpu-layers wants", "leave one of them out")
        if device and wishes.gpu_layers == 0:
            what = f"--gpu-layers 0 puts nothing on {device.id}, as --device (or TOKENCLI_DEVICE) wants"
            raise UsageError(what, "leave one of them out, or use --device cpu")
        return device
    if wishes.gpu_layers == 0:
        return None
    real = _one_per_card([each for each in gpus if not is_software(each)], tuple(quirks))
    candidates = sorted(real or (gpus if wishes.gpu_layers else []), key=_preference)
    if not candidates and wishes.gpu_layers:
        raise UsageError("--gpu-layers needs a GPU, and llama.cpp lists none here", "use --gpu-layers 0, or build for your GPU")
    return candidates[0] if candidates else None


def tuned_device(wishes: Wishes, tuned: Tuned | None, machine: Machine) -> Wishes:
    """The wishes with the device that was measured to be fastest, where nothing was said of a place and it is there."""
    if tuned is None or (wishes.device, wishes.gpu_layers, wishes.cpu_moe) != (None, None, None):
        return wishes
    if tuned.device not in ("CPU", *(each.id for each in _gpus(machine))):
        return wishes
    return dataclasses.replace(wishes, device=tuned.device)


def rejected_devices(machine: Machine, chosen: Device | None) -> list[Rejected]:
    """Why each other GPU was left out."""
    return [Rejected(f"{each.id} ({each.description})", _why_not(each, chosen)) for each in _gpus(machine) if each != chosen]


def choose_profile(profiles: Iterable[Profile], device: Device | None, name: str | None) -> Profile:
    """The profile asked for, else the one for the device's kind."""
    known = {profile.name: profile for profile in profiles}
    if name is not None:
        if name not in known:
            raise UsageError(f"there is no profile {name}", "known profiles: " + ", ".join(known))
        return known[name]
    kind = device.kind if device else "cpu"
    return next(profile for profile in known.values() if profile.kind == kind)


def choose_draft(settings: Settings, draft: ModelFile | None, *, recurrent: bool) -> Draft | None:
    """The draft of the plan, on the CPU so far. A model is only taken when it was asked for and found fit.

    A depth that nobody asked for is the most that is tried. `recurrent` targets pay a whole state for each token of it.
    """
    wanted = settings.take("draft")
    depth = settings.take("draft_tokens")
    adaptive = settings.origins["draft_tokens"] != "flag"
    if adaptive and recurrent:
        depth = min(depth, _MOST_STATES)
    if draft:
        return Draft("model", draft.model.file, None, depth, 0.0, adaptive)
    if wanted == "auto":
        wanted, settings.origins["draft"] = first_given(
            ("tuned", settings.tuned.get("draft")), ("profile", settings.profile.draft)
        )
    return Draft("ngram", None, None, depth, 0.0, adaptive) if wanted == "ngram" else None


def is_software(device: Device) -> bool:
    """Whether the "GPU" is the CPU in disguise (Mesa's llvmpipe)."""
    return any(name in device.description.lower() for name in _SOFTWARE)


def _gpus(machine: Machine) -> list[Device]:
    return [each for each in machine.devices if each.kind in ("gpu", "integrated")]


def quirks_of(device: Device, quirks: Iterable[Quirk]) -> list[Quirk]:
    """Those of the device, with its backend."""
    return [each for each in quirks if each.backend in (None, device.backend) and re.search(each.match, device.description)]


def same_card(first: Device, second: Device) -> bool:
    """Whether two backends list one card: by its PCI id, else by name and memory."""
    if first.backend == second.backend:
        return False
    if first.pci_id and second.pci_id:
        return first.pci_id == second.pci_id
    names = {re.sub(r"\s*\(.*?\)", "", each.description).lower() for each in (first, second)}
    larger = max(first.total_bytes, second.total_bytes)
    return len(names) == 1 and abs(first.total_bytes - second.total_bytes) <= _SAME_SIZE * larger


def _one_per_card(devices: list[Device], quirks: tuple[Quirk, ...]) -> list[Device]:
    """Each card once, by the backend that should run it."""
    kept: list[Device] = []
    for device in sorted(devices, key=lambda each: _backend_rank(each, quirks)):
        if not any(same_card(device, each) for each in kept):
            kept.append(device)
    return kept


def _backend_rank(device: Device, quirks: tuple[Quirk, ...]) -> int:
    preferred = [each.prefer for each in quirks_of(device, quirks) if each.prefer]
    order = [*preferred, *(_BACKENDS_INTEGRATED if device.kind == "integrated" else _BACKENDS)]
    return order.index(device.backend) if device.backend in order else len(order)


def _why_not(device: Device, chosen: Device | None) -> str:
    if is_software(device):
        return "a software device: it is the CPU, slower"
    if chosen and same_card(device, chosen):
        return f"the same card as {chosen.id}"
    if chosen is None:
        return "the CPU was asked for"
    if device.kind == "integrated" and chosen.kind == "gpu":
        return f"integrated: {chosen.id} has memory of its own"
    return f"{chosen.id} was preferred: one device runs the whole plan"


def _named(name: str, gpus: list[Device]) -> Device | None:
    if name.lower() == "cpu":
        return None
    for device in gpus:
        if device.id.lower() == name.lower():
            return device
    raise UsageError(f"llama.cpp lists no device {name}", "known devices: " + ", ".join(["cpu", *(each.id for each in gpus)]))


def _preference(device: Device) -> tuple[bool, bool, int]:
    return is_software(device), device.kind == "integrated", -device.free_bytes

"""From a model, the devices and the wishes to a plan, with reasons. Pure.

First version: everything on one device where the file clearly fits its free memory, else the CPU. It does not price the KV
cache or the compute buffers yet, so it leaves a wide margin.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokencli.core import Device, Model, Plan
from tokencli.errors import UsageError

DEFAULT_CONTEXT = 4096
MARGIN_BYTES = 1 << 30
MARGIN_SHARE = 0.1

_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "softpipe")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for; None is "decide for me". `gpu_layers` -1 means all of them."""

    gpu_layers: int | None = None
    context: int | None = None
    threads: int | None = None


def make_plan(model: Model, devices: Sequence[Device], wishes: Wishes, *, cores: int, extra_buffers: bool) -> Plan:
    """The plan for `model` here. Raises UsageError for a wish that no plan can meet."""
    context, notes = _context(model, wishes)
    device, gpu_layers, reasons = _placement(model, devices, wishes)
    notes += reasons
    if not extra_buffers:
        notes.append("without the CPU's extra buffers: this build crashed with them on this CPU (slower prefill)")
    return Plan(
        model=model,
        backend=device.id.rstrip("0123456789").lower() if device else "cpu",
        device=device.id if device else None,
        gpu_layers=gpu_layers,
        context=context,
        threads=wishes.threads or cores,
        extra_buffers=extra_buffers,
        notes=tuple(notes),
    )


def is_software(device: Device) -> bool:
    """Whether the "GPU" is the CPU in disguise (Mesa's llvmpipe): never chosen unless asked for (report A1-11)."""
    return any(name in device.description.lower() for name in _SOFTWARE)


def _context(model: Model, wishes: Wishes) -> tuple[int, list[str]]:
    trained = model.context_trained
    if wishes.context is None:
        return min(DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT), []
    if trained and wishes.context > trained:
        return wishes.context, [f"a context of {wishes.context} is more than the {trained} the model was trained for"]
    return wishes.context, []


def _placement(model: Model, devices: Sequence[Device], wishes: Wishes) -> tuple[Device | None, int, list[str]]:
    """The device, how many layers go there, and why."""
    gpus = sorted((each for each in devices if each.kind in ("gpu", "integrated")), key=_preference)
    if wishes.gpu_layers == 0:
        return None, 0, []
    if wishes.gpu_layers is not None:
        return _as_asked(model, gpus, wishes.gpu_layers)
    real = [each for each in gpus if not is_software(each)]
    if not real:
        return None, 0, []
    needed = model.bytes + int(MARGIN_SHARE * model.bytes) + MARGIN_BYTES
    if needed > real[0].free_bytes:
        free = f"{real[0].free_bytes / (1 << 30):.1f} GiB free on {real[0].id}"
        return None, 0, [f"on the CPU: {free} may not hold the model; --gpu-layers N puts a part there"]
    return real[0], model.offloadable_layers, []


def _as_asked(model: Model, gpus: Sequence[Device], layers: int) -> tuple[Device | None, int, list[str]]:
    if not gpus:
        raise UsageError("--gpu-layers needs a GPU, and llama.cpp lists none here", "use --gpu-layers 0, or build for your GPU")
    notes = [f"{gpus[0].id} is a software device ({gpus[0].description})"] if is_software(gpus[0]) else []
    count = model.offloadable_layers if layers < 0 else min(layers, model.offloadable_layers)
    return gpus[0], count, notes


def _preference(device: Device) -> tuple[bool, bool, int]:
    """Real devices before software, discrete before integrated, then the most free memory."""
    return is_software(device), device.kind == "integrated", -device.free_bytes

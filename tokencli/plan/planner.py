"""From a model, a machine, a profile and the wishes to a plan, with reasons. Pure; llama.cpp's dry run is handed in.

First version: as many whole layers on one device as its free memory holds with headroom, the rest on the CPU.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokencli.core import Device, DeviceBytes, Draft, Machine, Model, ModelInfo, Plan, Profile
from tokencli.errors import DoesNotFit, UsageError
from tokencli.plan import memory
from tokencli.plan.settings import Settings, first_given

DryRun = Callable[[Plan], tuple[DeviceBytes, ...]]

ALL = -1

_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "softpipe")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for; None is "decide for me". `gpu_layers` ALL means all of them; `device` is llama.cpp's name."""

    gpu_layers: int | None = None
    device: str | None = None
    profile: str | None = None
    context: int | None = None
    kv_type: str | None = None
    threads: int | None = None
    draft: str | None = None
    draft_tokens: int | None = None

    def flags(self) -> dict[str, object]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model as a file and what its header tells: a target, or a draft that may be used."""

    model: Model
    info: ModelInfo

    @classmethod
    def of(cls, info: ModelInfo, file: str, name: str) -> "ModelFile":
        model = Model(name, file, info.quant, info.architecture, info.file_bytes, info.layers, info.context_trained)
        return cls(model, info)


def make_plan(
    target: ModelFile,
    machine: Machine,
    profiles: Iterable[Profile],
    wishes: Wishes,
    *,
    draft: ModelFile | None = None,
    extra_buffers: bool = True,
    dry_run: DryRun,
) -> Plan:
    """The plan for `target` here. Raises UsageError for a wish that nothing here can meet, DoesNotFit."""
    info = target.info
    device = choose_device(machine, wishes)
    profile = choose_profile(profiles, device, wishes.profile)
    settings = Settings(wishes.flags(), {}, profile)
    plan = _unplaced(target.model, machine, device, settings, wishes, extra_buffers)
    plan = dataclasses.replace(plan, draft=_draft(settings, draft, wishes), notes=tuple(_remarks(plan, info, extra_buffers)))
    if device:
        budget = int(device.free_bytes * (1 - profile.headroom_share))
        plan = _placed(plan, info, draft, wishes.gpu_layers, device, budget, dry_run)
    _check_ram(plan, info, machine, profile)
    return dataclasses.replace(plan, origins=dict(settings.origins))


def choose_device(machine: Machine, wishes: Wishes) -> Device | None:
    """The GPU to use, None for the CPU: discrete before integrated, software only by name or count (report A1-11)."""
    gpus = [each for each in machine.devices if each.kind in ("gpu", "integrated")]
    if wishes.device is not None:
        return _named(wishes.device, gpus)
    if wishes.gpu_layers == 0:
        return None
    real = [each for each in gpus if not is_software(each)]
    candidates = sorted(real or (gpus if wishes.gpu_layers else []), key=_preference)
    if not candidates and wishes.gpu_layers:
        raise UsageError("--gpu-layers needs a GPU, and llama.cpp lists none here", "use --gpu-layers 0, or build for your GPU")
    return candidates[0] if candidates else None


def choose_profile(profiles: Iterable[Profile], device: Device | None, name: str | None) -> Profile:
    """The profile asked for, else the one for the device's kind."""
    known = {profile.name: profile for profile in profiles}
    if name is not None:
        if name not in known:
            raise UsageError(f"there is no profile {name}", "known profiles: " + ", ".join(known))
        return known[name]
    kind = device.kind if device else "cpu"
    return next(profile for profile in known.values() if profile.kind == kind)


def is_software(device: Device) -> bool:
    """Whether the "GPU" is the CPU in disguise (Mesa's llvmpipe)."""
    return any(name in device.description.lower() for name in _SOFTWARE)


def _named(name: str, gpus: list[Device]) -> Device | None:
    if name.lower() == "cpu":
        return None
    for device in gpus:
        if device.id.lower() == name.lower():
            return device
    raise UsageError(f"llama.cpp lists no device {name}", "known devices: " + ", ".join(["cpu", *(each.id for each in gpus)]))


def _preference(device: Device) -> tuple[bool, bool, int]:
    return is_software(device), device.kind == "integrated", -device.free_bytes


def _unplaced(
    model: Model, machine: Machine, device: Device | None, settings: Settings, wishes: Wishes, extra_buffers: bool
) -> Plan:
    """The plan but for what goes where: everything on the CPU."""
    context = settings.take("context")
    if wishes.context is None and model.context_trained and model.context_trained < context:
        context, settings.origins["context"] = model.context_trained, "model"
    threads, settings.origins["threads"] = first_given(("flag", wishes.threads), ("machine", machine.cores))
    return Plan(
        model=model,
        backend=device.id.rstrip("0123456789").lower() if device else "cpu",
        device=device.id if device else None,
        profile=settings.profile.name,
        gpu_layers=0,
        context=context,
        threads=threads,
        kv_type=settings.take("kv_type"),
        batch=settings.take("batch"),
        ubatch=settings.take("ubatch"),
        flash_attention=settings.take("flash_attention"),
        extra_buffers=extra_buffers,
    )


def _draft(settings: Settings, draft: ModelFile | None, wishes: Wishes) -> Draft | None:
    """The draft of the plan, on the CPU so far. A model is only taken when it was asked for and found fit."""
    wanted = settings.take("draft")
    depth = settings.take("draft_tokens")
    if draft:
        return Draft("model", draft.model.file, None, depth, 0.0)
    if wanted == "auto":
        wanted, settings.origins["draft"] = settings.profile.draft, "profile"
    return Draft("ngram", None, None, depth, 0.0) if wanted == "ngram" else None


def _remarks(plan: Plan, info: ModelInfo, extra_buffers: bool) -> list[str]:
    notes = []
    if info.context_trained and plan.context > info.context_trained:
        notes.append(f"a context of {plan.context} is more than the {info.context_trained} the model was trained for")
    if not extra_buffers:
        notes.append("without the CPU's extra buffers: this build crashed with them on this CPU (slower prefill)")
    return notes


def _placed(
    plan: Plan, info: ModelInfo, draft: ModelFile | None, wanted: int | None, device: Device, budget: int, dry_run: DryRun
) -> Plan:
    """The plan with its layers, and its draft where there is room for all of it, on the device."""
    notes = list(plan.notes)
    if is_software(device):
        notes.append(f"{device.id} is a software device ({device.description})")
    if wanted is not None:
        count = plan.model.offloadable_layers if wanted == ALL else min(wanted, plan.model.offloadable_layers)
    else:
        count = _most_that_fit(plan, info, budget, dry_run)
        if count < plan.model.offloadable_layers:
            notes.append(_partly(count, plan, budget))
    plan = dataclasses.replace(plan, gpu_layers=count, notes=tuple(notes))
    if count == 0:
        return dataclasses.replace(plan, device=None, backend="cpu")
    return _with_draft_beside(plan, info, draft, budget, dry_run) if draft and count == plan.model.offloadable_layers else plan


def _most_that_fit(plan: Plan, info: ModelInfo, budget: int, dry_run: DryRun) -> int:
    """The most layers whose weights, cache, state and compute buffer the budget holds.

    The compute buffer is the dry run's: one at full offload, one at half, as it is larger at partial offload (report A2-27).
    """
    full = plan.model.offloadable_layers
    if _needs(plan, info, full) + _compute(plan, full, dry_run) <= budget:
        return full
    partial = _compute(plan, max(full // 2, 1), dry_run)
    return max((count for count in range(1, full) if _needs(plan, info, count) + partial <= budget), default=0)


def _needs(plan: Plan, info: ModelInfo, gpu_layers: int) -> int:
    """Bytes on the device without the compute buffer."""
    copies = 1 + (plan.draft.max_tokens if plan.draft else 0)
    return (
        memory.device_weights(info, gpu_layers)
        + memory.device_kv(info, gpu_layers, plan.context, plan.kv_type, plan.ubatch)
        + memory.device_state(info, gpu_layers, copies)
    )


def _compute(plan: Plan, gpu_layers: int, dry_run: DryRun) -> int:
    """Compute and output bytes on the plan's device at a number of layers, by llama.cpp's dry run."""
    tried = dataclasses.replace(plan, gpu_layers=gpu_layers, draft=None if _is_model(plan.draft) else plan.draft)
    return sum(place.compute + place.output for place in dry_run(tried) if place.id == plan.device)


def _with_draft_beside(plan: Plan, info: ModelInfo, draft: ModelFile, budget: int, dry_run: DryRun) -> Plan:
    """The draft on the device too where all fits; else it stays on the CPU, and the note says so."""
    assert plan.draft
    beside = dataclasses.replace(plan, draft=dataclasses.replace(plan.draft, device=plan.device))
    layers = draft.model.offloadable_layers
    own = memory.device_weights(draft.info, layers) + memory.device_kv(
        draft.info, layers, plan.context, plan.kv_type, plan.ubatch
    )
    compute = sum(place.compute + place.output for place in dry_run(beside) if place.id == plan.device)
    if _needs(plan, info, plan.gpu_layers) + own + compute <= budget:
        return beside
    return dataclasses.replace(plan, notes=(*plan.notes, f"the draft runs on the CPU: {plan.device} has no room for it"))


def _check_ram(plan: Plan, info: ModelInfo, machine: Machine, profile: Profile) -> None:
    """The cache on the host cannot be paged out, so it must fit. Raises DoesNotFit; weights are mapped and may exceed RAM."""
    everything = memory.device_kv(info, plan.model.offloadable_layers, plan.context, plan.kv_type, plan.ubatch)
    cache = everything - memory.device_kv(info, plan.gpu_layers, plan.context, plan.kv_type, plan.ubatch)
    room = int(machine.ram_available_bytes * (1 - profile.headroom_share))
    if cache > room:
        raise DoesNotFit(
            f"a context of {plan.context} needs {cache / 2**30:.1f} GiB of KV cache, {room / 2**30:.1f} GiB are free",
            "use a smaller --context, or --kv-type q8_0",
        )


def _is_model(draft: Draft | None) -> bool:
    return draft is not None and draft.kind == "model"


def _partly(count: int, plan: Plan, budget: int) -> str:
    """Why not all layers are on the device."""
    placed = f"{count} of {plan.model.offloadable_layers} layers on {plan.device}" if count else "on the CPU"
    return f"{placed}: {budget / 2**30:.1f} GiB may be used there, which does not hold all of the model with its context"

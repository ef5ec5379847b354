"""A plan before it is placed, and the remarks on what becomes of it: limits, what they come from, what would raise them. Pure."""

import dataclasses
from collections.abc import Iterator

from tokencli.core import Device, Machine, Model, ModelInfo, Plan
from tokencli.plan.choose import ALL, Wishes
from tokencli.plan.settings import Settings, first_given
from tokencli.plan.sizes import Budgets

READ_AGAIN = "what does not stay there is read from the disk again"


def unplaced(model: Model, machine: Machine, device: Device | None, settings: Settings, wishes: Wishes) -> Plan:
    """The plan but for what goes where: everything on the CPU."""
    context = settings.take("context")
    if wishes.context is None and model.context_trained and model.context_trained < context:
        context, settings.origins["context"] = model.context_trained, "model"
    free, tuned = machine.threads, settings.tuned.get("threads")
    threads, settings.origins["threads"] = first_given(
        ("flag", wishes.threads), ("tuned", min(tuned, free) if tuned else None), ("machine", free)
    )
    batch_threads = settings.tuned.get("batch_threads") if wishes.threads is None else None
    return Plan(
        model=model,
        backend=device.backend if device else "cpu",
        device=device.id if device else None,
        profile=settings.profile.name,
        gpu_layers=0,
        context=context,
        threads=threads,
        batch_threads=min(batch_threads, free) if batch_threads else None,
        kv_type=settings.take("kv_type"),
        batch=max(settings.take("batch"), wishes.ubatch or 0),
        ubatch=settings.take("ubatch"),
        flash_attention=settings.take("flash_attention"),
    )


def busy(plan: Plan, machine: Machine) -> Iterator[str]:
    if plan.threads == machine.threads < dataclasses.replace(machine, busy_cores=None).threads:
        yield f"{plan.threads} of {machine.cores} cores used: other programs keep {machine.busy_cores:.1f} of them busy"


def remarks(plan: Plan, info: ModelInfo, extra_buffers: bool) -> Iterator[str]:
    if info.context_trained and plan.context > info.context_trained:
        yield f"a context of {plan.context} is more than the {info.context_trained} the model was trained for"
    if info.index_cache:
        yield "the index cache of this model's sparse attention is not counted: the KV cache takes more than is said here"
    if not extra_buffers:
        yield "without the CPU's extra buffers: this build crashed with them on this CPU (slower prefill)"


def experts_wanted(wishes: Wishes, info: ModelInfo) -> int | None:
    """Of how many blocks the experts are to stay on the CPU; None where that is left to us."""
    if wishes.cpu_moe is None:
        return None
    return info.trunk_layers if wishes.cpu_moe == ALL else min(wishes.cpu_moe, info.trunk_layers)


def partly(split: Plan, experts_decided: bool, budgets: Budgets) -> str:
    """Why not all of the model is on the device."""
    where = (
        f"{split.gpu_layers} of {split.model.offloadable_layers} layers on {split.device}" if split.gpu_layers else "on the CPU"
    )
    if split.cpu_moe_layers and experts_decided:
        where += f", the experts of the first {split.cpu_moe_layers} blocks on the CPU"
    return f"{where}: {gib(budgets.device)} may be used there, which does not hold all of the model with its context"


def larger_gtt(plan: Plan, machine: Machine, budgets: Budgets) -> Iterator[str]:
    """What would let an AMD GPU use more of the RAM, where that and not the RAM is the limit (report A1-30)."""
    device = next(each for each in machine.devices if each.id == plan.device)
    present = device.total_bytes - (device.carve_out_bytes or 0) if device.gtt_bytes is None else device.gtt_bytes
    wanted = machine.ram_total_bytes * 3 // 4
    limits = device.kind == "integrated" and "AMD" in device.description and budgets.device < budgets.host
    if limits and wanted > present:
        yield (
            f"Linux lets {device.id} use {gib(device.total_bytes)}: the kernel parameter ttm.pages_limit={wanted // 4096} "
            f"(on older kernels amdgpu.gttsize={wanted >> 20}) allows more of the RAM"
        )


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 100 << 20 else f"{size / 2**20:.0f} MiB"

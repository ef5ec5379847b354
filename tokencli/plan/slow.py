"""Says when an answer came much slower than predicted, and what such a thing often comes from. Pure."""

from collections.abc import Iterator

from tokencli.core import Machine, Plan, Stats, Strain
from tokencli.plan.loss import without_kernel
from tokencli.plan.remarks import gib

_FAR_BELOW = 0.4
_TOKENS = 16  # fewer say nothing about speed
_BUSY = 0.2  # cores: less slows nothing by so much
_NAMED = 3
_SWAPPED = 16 << 20


def is_far_below(plan: Plan, stats: Stats) -> bool:
    """Whether it decoded at under 40 % of the prediction (report A7-12); never without one."""
    expected, measured = plan.predicted.decode_tokens_per_second, stats.decode_tokens_per_second
    return bool(expected and measured and stats.tokens >= _TOKENS and measured < _FAR_BELOW * expected)


def slower_than_predicted(plan: Plan, stats: Stats, machine: Machine, strain: Strain) -> str:
    """A sentence for an answer that `is_far_below`."""
    expected, measured = plan.predicted.decode_tokens_per_second, stats.decode_tokens_per_second
    causes = "; ".join(_causes(plan, machine, strain)) or _usual(plan)
    by = " by what tune measured here" if plan.predicted.origin == "calibrated" else ""
    return f"{measured:.1f} tokens/s, where {expected:.1f} were predicted{by}: {causes}"


def _causes(plan: Plan, machine: Machine, strain: Strain) -> Iterator[str]:
    """What is seen here and does such a thing."""
    if machine.on_ac is False:
        yield "it runs on battery"
    for device in machine.devices:
        if device.id == plan.device and device.performance_level in ("low", "auto"):
            yield f"{device.id} is at performance level {device.performance_level}"
    busy = [f"{name} ({cores:.1f})" for name, cores in strain.programs if cores >= _BUSY]
    if busy:
        yield f"other programs keep cores busy: {', '.join(busy[:_NAMED])}"
    if plan.device and (why := without_kernel(plan.backend, plan.model.quant)):
        yield why
    if (strain.swapped_bytes or 0) >= _SWAPPED:
        yield f"{gib(strain.swapped_bytes or 0)} of the engine were swapped out: the memory is full"
    if any(place.id == "CPU" and place.weights > machine.ram_available_bytes for place in plan.devices):
        yield "more weights are on the CPU than there was free RAM"
    if machine.cpu_quota is not None:
        yield f"a control group grants {machine.cpu_quota:g} CPUs"


def _usual(plan: Plan) -> str:
    """Where nothing was seen."""
    where = f"the {plan.backend} backend" if plan.device else "this build for the CPU"
    return f"nothing here tells why; {where} may have no fast kernel for {plan.model.quant}, or what was predicted is wrong"

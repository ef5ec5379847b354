"""Says when an answer came much slower than predicted, and what such a thing often comes from. Pure."""

from collections.abc import Iterator

from tokencli.core import Machine, Plan, Stats

_FAR_BELOW = 0.4
_TOKENS = 16  # fewer say nothing about speed


def slower_than_predicted(plan: Plan, stats: Stats, machine: Machine) -> str | None:
    """A sentence where it decoded at under 40 % of the prediction (report A7-12), else None: also without a prediction."""
    expected, measured = plan.predicted.decode_tokens_per_second, stats.decode_tokens_per_second
    if not expected or not measured or stats.tokens < _TOKENS or measured >= _FAR_BELOW * expected:
        return None
    return f"{measured:.1f} tokens/s, where {expected:.1f} were {plan.predicted.origin}: {'; '.join(_causes(plan, machine))}"


def _causes(plan: Plan, machine: Machine) -> Iterator[str]:
    """What is known to do so, of this machine first."""
    if machine.on_ac is False:
        yield "it runs on battery"
    for device in machine.devices:
        if device.id == plan.device and device.performance_level in ("low", "auto"):
            yield f"{device.id} is at performance level {device.performance_level}"
    if machine.cpu_quota is not None:
        yield f"a control group grants {machine.cpu_quota:g} CPUs"
    if any(place.id == "CPU" and place.weights > machine.ram_available_bytes for place in plan.devices):
        yield "more weights are on the CPU than there was free RAM"
    yield "other programs may use the same cores or memory, or the backend has no fast kernel for this type"

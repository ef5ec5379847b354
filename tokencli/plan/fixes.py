"""What would make a plan smaller, and what each change costs: the cheapest first, the context last. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from tokencli.core import ModelInfo, Plan
from tokencli.plan.smaller import smaller_plans
from tokencli.plan.speed import factor, prefill_factor


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that makes a plan smaller: what to type, and how many bytes it saves, of `device` alone where one is named.

    `decode_factor`, `prefill_factor`: speed with it over that without, None where neither is known.
    """

    change: str
    bytes: int
    device: str | None = None
    decode_factor: float | None = None
    prefill_factor: float | None = None


def priced(plan: Plan, info: ModelInfo, sized: Callable[[Plan], Plan], fits: Callable[[Plan], bool]) -> tuple[Fix, ...]:
    """Single changes that save memory. `sized` gives a plan its bytes and speeds, `fits` says whether there is room for it."""
    found = []
    for change, smaller in smaller_plans(plan, info):
        if " and " in change:
            continue
        where = plan.device if smaller.cpu_moe_layers != plan.cpu_moe_layers else None  # the host has as much more
        other = sized(smaller)
        saved = _total(plan, where) - _total(other, where)
        if saved > 0 and not (where and not fits(other)):
            decode, prefill = factor(other.predicted, plan.predicted), prefill_factor(other.predicted, plan.predicted)
            found.append(Fix(change, saved, where, decode, prefill))
    return tuple(sorted(found, key=_price))


def _price(fix: Fix) -> tuple[bool, float, bool, float]:
    """Decode speed before a coarser cache, that before the speed of reading a prompt."""
    slower, reads_slower = (max(0.0, 1 - (each or 1.0)) for each in (fix.decode_factor, fix.prefill_factor))
    return fix.change.startswith("--context"), round(slower, 2), fix.change.startswith("--kv-type"), round(reads_slower, 2)


def _total(plan: Plan, device: str | None) -> int:
    """Bytes of the plan, on one device or on all."""
    return sum(place.total for place in plan.devices if device in (None, place.id))

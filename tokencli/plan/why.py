"""Why one plan was not taken but another: the first thing that they are sorted by and differ in, in words. Pure."""

from collections.abc import Callable

from tokencli.core import Plan
from tokencli.plan.loss import FLOOR
from tokencli.plan.search import Found
from tokencli.plan.vary import where_it_is

KINDS: dict[str, Callable[[Plan], bool]] = {
    "whole": lambda plan: plan.gpu_layers == plan.model.offloadable_layers and not plan.cpu_moe_layers,
    "experts": lambda plan: plan.gpu_layers == plan.model.offloadable_layers and plan.cpu_moe_layers > 0,
    "layers": lambda plan: 0 < plan.gpu_layers < plan.model.offloadable_layers,
    "cpu": lambda plan: plan.gpu_layers == 0,
}


def reason(other: Found, taken: Found) -> str:
    """What `other` is, and what it is worse in."""
    if other.key >= taken.key:
        return f"{described(other)}: as good as what was taken"
    at = next(index for index, (own, best) in enumerate(zip(other.key, taken.key, strict=True)) if own != best)
    return f"{described(other)}: {_told(at, other, taken)}"


def described(found: Found) -> str:
    plan = found.plan
    return f"{found.model.quant}, {where_it_is(plan)}, context {plan.context}, KV {plan.kv_type}"


def _told(at: int, other: Found, taken: Found) -> str:
    own, best = other.key, taken.key
    told = (
        f"{_lost(other)}, where up to {FLOOR:g} % are accepted" if other.model.loss > FLOOR else _cache_lost(other),
        f"{best[1] - own[1]:.0f} GiB more would be read from the disk again and again",
        f"about {own[8]:.2g} tokens/s instead of {best[8]:.2g}",
        f"not whole on the GPU, as {taken.model.quant} is with KV {taken.plan.kv_type}",
        f"a context of {own[4]:.0f} instead of {best[4]:.0f}",
        f"{_lost(other)}; {taken.model.quant} fits as well and loses less",
        f"a coarser cache than {taken.plan.kv_type}",
        f"reads a prompt in pieces of {own[7]:.0f} instead of {best[7]:.0f} tokens",
        f"about {own[8]:.2g} tokens/s instead of {best[8]:.2g}",
        "less of it on the GPU",
    )
    return told[at]


def _lost(found: Found) -> str:
    return found.model.measured.told(found.model.quant)


def _cache_lost(found: Found) -> str:
    kv_type, measured = found.plan.kv_type, found.model.measured.of_cache(found.plan.kv_type)
    told = "" if measured is None else f": {measured:.2g} % of perplexity as measured here"
    return f"a cache of {kv_type} loses too much{told}"

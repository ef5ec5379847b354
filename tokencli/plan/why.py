"""Why one plan was not taken but another: the first thing that they are sorted by and differ in, in words. Pure."""

from collections.abc import Callable

from tokencli.core import Plan
from tokencli.plan.loss import FLOOR
from tokencli.plan.search import Found, Key
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
    first = next(name for name in Key._fields if getattr(other.key, name) != getattr(taken.key, name))
    return f"{described(other)}: {_told(first, other, taken)}"


def described(found: Found) -> str:
    plan = found.plan
    return f"{found.model.quant}, {where_it_is(plan)}, context {plan.context}, KV {plan.kv_type}"


def _told(first: str, other: Found, taken: Found) -> str:
    own, best = other.key, taken.key
    loses = f"{_lost(other)}; {taken.model.quant} fits as well and loses less"
    slower = f"about {own.speed:.2g} tokens/s instead of {best.speed:.2g}"
    told = {
        "accepted": f"{_lost(other)}, where up to {FLOOR:g} % are accepted" if other.model.loss > FLOOR else _cache_lost(other),
        "read_again": f"{best.read_again - own.read_again} GiB more would be read from the disk again and again",
        "lost_much": loses,
        "grade": slower,
        "whole": f"not whole on the GPU, as {taken.model.quant} is with KV {taken.plan.kv_type}",
        "context": f"a context of {own.context} instead of {best.context}",
        "lost": loses,
        "cache": f"a coarser cache than {taken.plan.kv_type}",
        "ubatch": f"reads a prompt in pieces of {own.ubatch} instead of {best.ubatch} tokens",
        "speed": slower,
        "on_device": "less of it on the GPU",
    }
    return told[first]


def _lost(found: Found) -> str:
    return found.model.measured.told(found.model.quant)


def _cache_lost(found: Found) -> str:
    kv_type, measured = found.plan.kv_type, found.model.measured.of_cache(found.plan.kv_type)
    told = "" if measured is None else f": {measured:.2g} % of perplexity as measured here"
    return f"a cache of {kv_type} loses too much{told}"

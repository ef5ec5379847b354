"""Why one plan was not taken but another: the first thing that they are sorted by and differ in, in words. Pure."""

from collections.abc import Callable

from tokencli.core import Plan
from tokencli.plan.loss import FLOOR, loss, published_loss
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
    quant, own, best = other.model.quant, other.key, taken.key
    told = (
        f"{_lost(quant)}, where up to {FLOOR:g} % are accepted"
        if loss(quant) > FLOOR
        else f"a cache of {other.plan.kv_type} loses too much",
        f"{best[1] - own[1]:.0f} GiB more would be read from the disk again and again",
        f"about {own[8]:.2g} tokens/s instead of {best[8]:.2g}",
        f"not whole on the GPU, as {taken.model.quant} is with KV {taken.plan.kv_type}",
        f"a context of {own[4]:.0f} instead of {best[4]:.0f}",
        f"{_lost(quant)}; {taken.model.quant} fits as well and loses less",
        f"a coarser cache than {taken.plan.kv_type}",
        f"reads a prompt in pieces of {own[7]:.0f} instead of {best[7]:.0f} tokens",
        f"about {own[8]:.2g} tokens/s instead of {best[8]:.2g}",
        "less of it on the GPU",
    )
    return told[at]


def _lost(quant: str) -> str:
    published = published_loss(quant)
    if published is not None:
        return f"loses {published:g} % of perplexity by published figures"
    return "nothing is published of its loss" if loss(quant) == float("inf") else f"loses about {loss(quant):g} % of perplexity"

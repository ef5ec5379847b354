"""Changes that make a plan smaller, as one would type them. Pure; whether they help is for the planner to see."""

import dataclasses
from collections.abc import Iterator

from tokencli.core import ModelInfo, Plan
from tokencli.plan.memory import refusal

SMALLEST_CONTEXT = 512
SMALL_UBATCH = 128


def smaller_plans(plan: Plan, info: ModelInfo) -> Iterator[tuple[str, Plan]]:
    """Changes that make a plan smaller, the cheapest for the user first: the micro-batch, the cache's type, then experts on the
    CPU, then the context, then cache and context both.
    """
    if plan.ubatch > SMALL_UBATCH:
        yield f"--ubatch {SMALL_UBATCH}", dataclasses.replace(plan, ubatch=SMALL_UBATCH)
    can_quantise = plan.kv_type == "f16" and not refusal(info, "q8_0", plan.flash_attention)
    quantised = ("--kv-type q8_0", dataclasses.replace(plan, kv_type="q8_0")) if can_quantise else None
    if quantised:
        yield quantised
    if plan.gpu_layers and plan.cpu_moe_layers < info.trunk_layers and info.experts:
        yield "--cpu-moe all", dataclasses.replace(plan, cpu_moe_layers=info.trunk_layers)
    context = plan.context // 2
    shorter = []
    while context >= SMALLEST_CONTEXT:
        shorter.append((f"--context {context}", dataclasses.replace(plan, context=context)))
        context //= 2
    yield from shorter
    if quantised:
        yield from ((f"{change} and {quantised[0]}", dataclasses.replace(each, kv_type="q8_0")) for change, each in shorter)

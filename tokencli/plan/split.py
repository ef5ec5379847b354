"""What of a model goes on its device where nobody says: layers, and whose experts stay on the CPU. Pure."""

import dataclasses
from collections.abc import Iterable, Iterator

from tokencli.core import ModelInfo, Plan
from tokencli.plan.memory import placed
from tokencli.plan.sizes import Budgets, DryRun, buffers, merged


def best_split(plan: Plan, info: ModelInfo, budgets: Budgets, dry_run: DryRun, cpu_moe: int | None) -> Plan:
    """The plan with the most on its device that the budgets hold, compute buffers included; no layers where only that fits.

    Where nothing fits it is the nearest miss. `cpu_moe` fixes whose experts stay on the CPU, None decides it.
    """
    nearest, least = plan, budgets.missing(placed(dataclasses.replace(plan, device=None), info))
    for asked, steps in _splits(plan, info, cpu_moe):
        compute = tuple(buffers(dry_run(asked)))
        for each in steps:
            missing = budgets.missing(merged((*placed(each, info), *compute)))
            if not missing:
                return each
            if missing < least:
                nearest, least = each, missing
    return nearest


def _splits(plan: Plan, info: ModelInfo, cpu_moe: int | None) -> Iterator[tuple[Plan, Iterable[Plan]]]:
    """Splits in the order they are tried, and for each group of them the one whose compute buffers stand for all.

    Experts go before whole layers: they are most of a block's bytes, of which a token reads few, and the block's cache stays
    on the device (report A2-36). Compute is larger where a part is on the CPU (A2-27), and most with all experts there.
    """

    def split(gpu_layers: int, cpu_moe_layers: int) -> Plan:
        return dataclasses.replace(plan, gpu_layers=gpu_layers, cpu_moe_layers=cpu_moe_layers)

    full, blocks = info.offloadable_layers, info.trunk_layers
    experts = cpu_moe or 0
    yield split(full, experts), [split(full, experts)]
    if cpu_moe is None and info.experts:
        experts = blocks
        yield split(full, blocks), (split(full, count) for count in range(1, blocks + 1))
    yield split(full // 2, experts), (split(count, experts) for count in range(full - 1, 0, -1))

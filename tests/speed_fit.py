"""Finds the fitted values of profiles/speeds/priors.toml from rows: one cost per layer for all GPUs, four shares of bandwidth.

The cost per layer comes from devices with several models, each with a share of its own. Then the shares: each device counts
once, and one far off pulls no harder than one a little off, so that no row decides. Steps are coarse, as devices are few.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from tests.speed_rows import Row, decode
from tokencli.core import Speeds

SHARES = ("cuda.gpu", "vulkan.gpu", "vulkan.integrated", "cpu.cpu")
_GPUS = SHARES[:3]
_STEPS = tuple(step / 50 for step in range(20, 51))
_LAYER_SECONDS = (20e-6, 35e-6, 50e-6, 65e-6, 80e-6, 95e-6, 120e-6)
_FAR = 0.1  # of the logarithm: beyond, an error counts by itself and not by its square


def fitted(rows: Iterable[Row], start: Speeds) -> Speeds:
    """`start` with the values that the rows speak for; what no row tells stays."""
    by_device: dict[str, list[Row]] = {}
    for row in rows:
        by_device.setdefault(row.device, []).append(row)
    layers = (_with_layers(start, seconds) for seconds in _LAYER_SECONDS)
    return _with_best_shares(min(layers, key=lambda speeds: _loss_within(speeds, by_device)), by_device)


def _loss_within(speeds: Speeds, rows: Mapping[str, list[Row]]) -> float:
    """What is left where each GPU has the share that suits it best."""
    total = 0.0
    for each in rows.values():
        plain = [row for row in each if _is_plain(row, speeds)]
        if len(plain) > 1:
            total += min(_loss(_with_share(speeds, _name(plain[0]), step), {"": plain}) for step in _STEPS)
    return total


def _is_plain(row: Row, speeds: Speeds) -> bool:
    """Whether only one bus and the layers cost: all on the GPU, no cache, no unpacking that takes longer."""
    whole = row.plan.gpu_layers == row.info.offloadable_layers and not row.plan.cpu_moe_layers
    return whole and not row.depth and row.info.quant not in speeds.rates[_name(row)].operations_per_weight


def _name(row: Row) -> str:
    return f"{row.plan.backend}.{row.machine.devices[-1].kind}"


def _with_best_shares(speeds: Speeds, rows: Mapping[str, list[Row]]) -> Speeds:
    """One share after the other, the CPU's last: only it meets others in one row, those of splits."""
    for name in SHARES:
        speeds = min((_with_share(speeds, name, step) for step in _STEPS), key=lambda tried: _loss(tried, rows))
    return speeds


def _loss(speeds: Speeds, rows: Mapping[str, list[Row]]) -> float:
    return sum(sum(_distance(row, speeds) for row in each) / len(each) for each in rows.values())


def _distance(row: Row, speeds: Speeds) -> float:
    predicted = decode(row, speeds)
    assert predicted
    assert row.decode
    error = abs(math.log(predicted / row.decode))
    return error**2 / 2 if error < _FAR else _FAR * (error - _FAR / 2)


def _with_share(speeds: Speeds, name: str, share: float) -> Speeds:
    return dataclasses.replace(
        speeds, rates={**speeds.rates, name: dataclasses.replace(speeds.rates[name], bandwidth_share=share)}
    )


def _with_layers(speeds: Speeds, seconds: float) -> Speeds:
    gpus = {name: dataclasses.replace(speeds.rates[name], layer_seconds=seconds) for name in _GPUS}
    return dataclasses.replace(speeds, rates={**speeds.rates, **gpus})

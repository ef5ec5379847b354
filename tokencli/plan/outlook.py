"""How models would go on a machine by their sizes alone, where no header is at hand, and which to try first. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tokencli.core import Device, Machine, Profile, Speeds
from tokencli.plan.choose import Wishes, choose_device, choose_profile
from tokencli.plan.search import grade
from tokencli.plan.sizes import Budgets

Placement = Literal["whole", "split", "no"]
# Cache and buffers on top of a file: docs/memory.md has 0.2 to 0.7 GiB for models of 0.6 to 9 billion weights at 4096 tokens.
_BESIDES = 512 << 20
# A computer whose bandwidth nobody knows is taken for one with two channels of DDR4 to put models in order, and for nothing else.
_READ_PER_SECOND = 28e9
_COMFORT = 2  # twice as fast as one reads: beyond that more weights are worth more than more speed


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether all of a model goes on the best device. `decode`: tokens per second, None where a bandwidth is not known."""

    placement: Placement
    decode: float | None
    order: tuple[float, ...]  # the larger the better


def outlook(size: int, active_share: float, machine: Machine, profiles: Iterable[Profile], speeds: Speeds) -> Outlook:
    """`active_share`: of its bytes what a token reads, 1 but for a mixture of experts."""
    device = choose_device(machine, Wishes())
    budgets = Budgets.of(machine, device, choose_profile(profiles, device, None))
    needed = size + _BESIDES
    room = budgets.device if device else budgets.host
    everywhere = budgets.host_total + (0 if budgets.shared else budgets.device)
    placement: Placement = "whole" if needed <= room else "split" if needed <= everywhere else "no"
    here = min(1.0, room / needed) if device else 0.0
    host = next((each for each in machine.devices if each.kind == "cpu"), None)
    read = size * active_share
    at_device, at_host = _rate(device, host, speeds), _rate(host, host, speeds)
    parts = [(read * here, at_device), (read * (1 - here), at_host)]
    known = all(rate for part, rate in parts if part)
    decode = 1 / sum(part / rate for part, rate in parts if part and rate) if known else None
    over = needed - budgets.host - (0 if budgets.shared else budgets.device) > 0
    return Outlook(
        placement,
        decode if placement != "no" else None,
        order(size, placement, decode or _READ_PER_SECOND / max(parts[1][0], 1), read_again=over),
    )


def order(size: int, placement: Placement, decode: float | None, *, read_again: bool = False) -> tuple[float, ...]:
    """What can be run, then what is fast enough to read along, then what is whole, then the most weights."""
    fast = 0 if read_again else min(_COMFORT, grade(decode))
    return placement != "no", fast, placement == "whole", size


def _rate(device: Device | None, host: Device | None, speeds: Speeds) -> float | None:
    """Bytes per second that reading weights reaches; an integrated GPU's bus is the host's."""
    if not device:
        return None
    nominal = device.bandwidth_bytes_per_second
    if nominal is None and device.kind == "integrated" and host:
        nominal = host.bandwidth_bytes_per_second
    rates = speeds.rates.get(f"{device.backend}.{device.kind}")
    return nominal * rates.bandwidth_share if nominal and rates else None

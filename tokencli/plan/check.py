"""A plan's predicted bytes beside what llama.cpp says, term by term. Pure."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from tokencli.core import DeviceBytes, DryRun, ModelInfo, Plan
from tokencli.plan.memory import HOST, kv_bytes, output_bytes, rows, snapshots
from tokencli.plan.sizes import TERMS


@dataclass(frozen=True, slots=True)
class Check:
    """Predicted bytes of one term on one device, and what llama.cpp says of it."""

    device: str
    term: str
    predicted: int
    actual: int


def compared(predicted: tuple[DeviceBytes, ...], actual: tuple[DeviceBytes, ...]) -> list[Check]:
    """Term by term, for every device that either side names."""
    ours, theirs = ({place.id: place for place in places} for places in (predicted, actual))
    none = DeviceBytes("", "cpu")
    return [
        Check(device, term, getattr(ours.get(device, none), term), getattr(theirs.get(device, none), term))
        for device in sorted(ours | theirs)
        for term in TERMS
        if getattr(ours.get(device, none), term) or getattr(theirs.get(device, none), term)
    ]


def as_dry_run(plan: Plan, info: ModelInfo, found: DryRun) -> tuple[DeviceBytes, ...]:
    """A dry run as bytes: the blocks it would put on each device have the sizes that the header tells."""
    devices = {place.id: place for place in found.devices}
    for device in (*found.layers, *found.kv_layers):
        devices.setdefault(device, DeviceBytes(device, "gpu"))
    return tuple(
        dataclasses.replace(
            place,
            recurrent=place.recurrent * (1 + snapshots(info, plan)),
            weights=_weights(info, found, device),
            kv=sum(
                kv_bytes(info, block, plan.context, plan.kv_type, plan.ubatch, plan.flash_attention)
                for block in found.kv_layers.get(device, ())
            ),
        )
        for device, place in devices.items()
    )


def as_reserved(plan: Plan, info: ModelInfo) -> tuple[DeviceBytes, ...]:
    """The plan's bytes as llama.cpp reserves them: its output begins with one row, and grows with the first drafted tokens."""
    grown = output_bytes(info, rows(plan)) - output_bytes(info, 1)
    return tuple(dataclasses.replace(place, output=place.output - grown if place.output else 0) for place in plan.devices)


def without_draft(places: Iterable[DeviceBytes]) -> tuple[DeviceBytes, ...]:
    """All but the draft, whose weights and cache a dry run does not tell."""
    return tuple(dataclasses.replace(place, draft=0) for place in places)


def _weights(info: ModelInfo, found: DryRun, device: str) -> int:
    """Bytes of a device's weights; the block after the last is the output, of which a tied model's device has a copy."""
    on_host = device == HOST
    size = info.input_bytes if on_host else 0
    for block in found.layers.get(device, ()):
        if block < info.trunk_layers:
            size += info.block_bytes[block]
        elif block == info.layers:
            own_output = info.weight_bytes - info.input_bytes - sum(info.block_bytes)
            size += own_output if on_host else info.output_bytes
    moved = (block for block in found.cpu_experts if block < info.trunk_layers and block not in found.layers.get(HOST, ()))
    experts = sum(info.expert_bytes[block] for block in moved)
    return size + (experts if on_host else -experts)

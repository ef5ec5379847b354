"""What a plan takes on each device, and what each device may give. Pure; the dry run is handed in for the compute buffers."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tokencli.core import Device, DeviceBytes, Machine, Model, ModelInfo, Plan, Profile
from tokencli.listing import HubModel, Variant
from tokencli.plan.loss import NOTHING_MEASURED, Measured
from tokencli.plan.memory import HOST, placed

TERMS = ("weights", "kv", "recurrent", "compute", "output", "draft")  # of DeviceBytes

DryRun = Callable[[Plan], tuple[DeviceBytes, ...]]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model as a file and what its header tells: a target, or a draft that may be used.

    `hub`: where it comes from; not fetched, only its headers are in the file. `notes`: what is to be said of the choice.
    `offered`: what else could be taken in its place, with itself, where nobody named a quant.
    `measured`: of its quality; `offered_measured`: of that of the others, by quant.
    """

    model: Model
    info: ModelInfo
    hub: HubModel | None = None
    notes: tuple[str, ...] = ()
    offered: tuple[Variant, ...] = ()
    measured: Measured = NOTHING_MEASURED
    offered_measured: tuple[tuple[str, Measured], ...] = ()

    @property
    def loss(self) -> float:
        """Percent of perplexity that its quant loses: as measured here, else as published."""
        return self.measured.loss(self.quant)

    @property
    def quant(self) -> str:
        """As it is published: a header tells only what most of its weights are."""
        return (self.hub.quant if self.hub else None) or self.info.quant

    @classmethod
    def of(cls, info: ModelInfo, file: str, name: str) -> "ModelFile":
        model = Model(name, file, info.quant, info.architecture, info.file_bytes, info.layers, info.context_trained)
        return cls(model, info)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes that a plan may use: on the host, and on its device. `shared`: both are one pool, booked once, as large as `host`
    (an integrated GPU's memory is RAM; its carve-out and GTT are bounded by what RAM there is).
    """

    host: int
    host_total: int
    device: int
    shared: bool

    @classmethod
    def of(cls, machine: Machine, device: Device | None, profile: Profile, margin: int = 0) -> "Budgets":
        """`margin`: bytes of the device that an earlier load found it cannot give, on top of the profile's headroom."""
        left = 1 - profile.headroom_share
        shared = device is not None and device.kind == "integrated"
        carved = (device.carve_out_bytes or 0) - (device.carve_out_used_bytes or 0) if device and shared else 0
        host = int((machine.ram_available_bytes + carved) * left)
        return cls(
            host=host,
            host_total=int((machine.ram_total_bytes + carved) * left),
            device=max(min(int(device.free_bytes * left), host if shared else device.free_bytes) - margin, 0) if device else 0,
            shared=shared,
        )

    def missing(self, places: Iterable[DeviceBytes]) -> int:
        """Bytes by which `places` exceed the budgets, 0 where they fit.

        Weights on the host are mapped from the file: the system can drop and read them again, so they only must not exceed all
        of the RAM, while caches and buffers must find free memory, and so must a draft: read again it would not pay.
        """
        by_id = {place.id: place for place in places}
        host = by_id.pop(HOST, DeviceBytes(HOST, "cpu"))
        on_device = sum(place.total for place in by_id.values())
        held = host.total - host.weights + (on_device if self.shared else 0)
        return max(on_device - self.device, held - self.host, held + host.weights - self.host_total, 0)


def predicted(plan: Plan, info: ModelInfo, draft: ModelFile | None, dry_run: DryRun) -> tuple[DeviceBytes, ...]:
    """All terms by device: the target's, the draft's in one, and the compute buffers of both from the dry run."""
    return merged((*placed(plan, info), *(draft_places(plan, draft) if draft else ()), *buffers(dry_run(plan))))


def asked_once(dry_run: DryRun) -> DryRun:
    """The dry run, asked once for all plans that are equal in what its buffers depend on."""
    known: dict[object, tuple[DeviceBytes, ...]] = {}

    def ask(plan: Plan) -> tuple[DeviceBytes, ...]:
        placing = plan.model.file, plan.device, plan.gpu_layers, plan.cpu_moe_layers, plan.extra_buffers, plan.draft
        key = *placing, plan.context, plan.batch, plan.ubatch, plan.kv_type, plan.flash_attention
        if key not in known:
            known[key] = dry_run(plan)
        return known[key]

    return ask


def buffers(found: Iterable[DeviceBytes]) -> Iterator[DeviceBytes]:
    """Of a dry run what has no closed form. Its output is of one row and its state of one copy: ours are the peak."""
    return (dataclasses.replace(place, output=0, recurrent=0) for place in found)


def merged(places: Iterable[DeviceBytes]) -> tuple[DeviceBytes, ...]:
    """One entry per device, the terms added up."""
    together: dict[str, DeviceBytes] = {}
    for place in places:
        together[place.id] = _sum(together[place.id], place) if place.id in together else place
    return tuple(together[device] for device in sorted(together))


def draft_places(plan: Plan, draft: ModelFile) -> Iterator[DeviceBytes]:
    """The draft's own weights, cache and output: all of it on one device."""
    assert plan.draft
    layers = draft.info.offloadable_layers if plan.draft.device else 0
    own = dataclasses.replace(plan, model=draft.model, device=plan.draft.device, gpu_layers=layers, cpu_moe_layers=0, draft=None)
    return (DeviceBytes(place.id, place.kind, draft=place.total) for place in placed(own, draft.info))


def _sum(first: DeviceBytes, second: DeviceBytes) -> DeviceBytes:
    return dataclasses.replace(second, **{term: getattr(first, term) + getattr(second, term) for term in TERMS})

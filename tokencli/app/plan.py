"""The story of `plan`: what would be run, here or elsewhere, and how far llama.cpp agrees. Prints nothing."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokencli.app.fetch import file_names, missing_bytes
from tokencli.app.isolation import Started, started
from tokencli.app.partner import partner_of
from tokencli.app.remembered import draft_wanted, remembering, tuned_for
from tokencli.app.world import World, chosen, dry_run, planner_here, read_draft, read_model
from tokencli.core import DeviceBytes, Holder, Loaded, Message, Plan, Request, Sampling
from tokencli.errors import DoesNotFit
from tokencli.plan.check import Check, as_dry_run, as_reserved, compared, without_draft
from tokencli.plan.choose import Wishes
from tokencli.plan.idle import fits_if_closed, if_closed
from tokencli.plan.memory import HOST, host_weights, mapped_bytes, refused, seen_by
from tokencli.plan.planner import Decision, Planner
from tokencli.plan.quants import size
from tokencli.plan.sizes import DryRun, ModelFile, asked_once
from tokencli.world import gguf_file, machine, settings


@dataclass(frozen=True, slots=True)
class Peak:
    """Most memory that the engine's process held, and by how much the free memory of each device fell."""

    host: int | None
    devices: dict[str, int]


def plan(model: str, wishes: Wishes, machine_name: str | None, world: World, why: str | None = None) -> Decision:
    """What would be run, here or on the machine named: nothing is loaded. Raises DoesNotFit with the change that would help.

    `why`: a quant or a kind of split of which to say why it was not taken.
    """
    decision, addresses = _decided(model, wishes, machine_name, world, why)
    return dataclasses.replace(
        decision,
        plan=_with_addresses(decision.plan, addresses),
        alternatives=tuple(_with_addresses(each, addresses) for each in decision.alternatives),
    )


def _decided(
    model: str, wishes: Wishes, machine_name: str | None, world: World, why: str | None
) -> tuple[Decision, dict[str, str]]:
    """The decision, and the addresses on the hub of the files that are not downloaded: the plans name their headers."""
    if machine_name is not None:
        elsewhere = machine.read_snapshot(machine_name, world.data)
        world = dataclasses.replace(world, read_machine=lambda _: elsewhere)  # a quant is chosen for its memory, too
    target = read_model(model, world, wishes.quant, hollow=True)
    draft, notes = read_draft(wishes.draft if machine_name else draft_wanted(target, wishes, world), target, world)
    world = world if machine_name else remembering(target, world)
    begun = started(world, wishes)
    notes += begun.notes
    with begun.engine as engine:
        if machine_name is None:
            planner = _planner(begun, target, draft, world)
        else:
            profiles = settings.read_profiles(world.data)
            speeds = settings.read_speeds(world.data)
            on_cpu = asked_once(lambda each: dry_run(engine, each, world).devices)
            ask = functools.partial(dry_run_elsewhere, on_cpu)
            planner = Planner(target, elsewhere, profiles, ask, draft, speeds=speeds)
            notes.append(ESTIMATED)
        planner = chosen(planner, model, wishes, world) if machine_name else _settled(planner, model, wishes, world)
        planner = dataclasses.replace(planner, partner=partner_of(planner.target, world))
        decision = _decision(planner, wishes, () if machine_name else world.read_holders())
        decision = dataclasses.replace(decision, why=planner.why(why, wishes) if why else None)
    target = planner.target
    missing = [each for each in (target, draft) if each and each.hub and not each.hub.fetched]
    notes = [*target.notes, *_not_fetched(missing, world), *notes]
    decided = dataclasses.replace(decision.plan, notes=(*notes, *decision.plan.notes))
    addresses = {each.model.file: f"hf:{each.hub.repo}/{each.hub.files[0].path}" for each in missing if each.hub}
    return dataclasses.replace(decision, plan=decided), addresses


def _decision(planner: Planner, wishes: Wishes, holders: tuple[Holder, ...]) -> Decision:
    """With what would be gained if the programs that hold the most memory were closed. Raises DoesNotFit."""
    try:
        decision = planner.decide(wishes)
    except DoesNotFit as error:
        closing = fits_if_closed(planner, wishes, holders)
        raise DoesNotFit(error.what, f"{error.hint}; {closing}" if closing else error.hint) from None
    gain = if_closed(decision.plan, planner, wishes, holders)
    noted = dataclasses.replace(decision.plan, notes=(*decision.plan.notes, gain)) if gain else decision.plan
    return dataclasses.replace(decision, plan=noted)


def _settled(planner: Planner, name: str, wishes: Wishes, world: World) -> Planner:
    """For the quant of the best plan, where that was open, with what was measured of it."""
    if not planner.target.offered:
        return planner
    planner = chosen(planner, name, wishes, world)
    return dataclasses.replace(planner, tuned=tuned_for(planner.target, planner.machine.devices, world))


def _planner(begun: Started, target: ModelFile, draft: ModelFile | None, world: World) -> Planner:
    extra_buffers = not world.find_verdicts().extra_buffers_crash()
    return planner_here(begun.engine, target, draft, extra_buffers, None, world, begun.meter)


def _with_addresses(plan: Plan, addresses: dict[str, str]) -> Plan:
    model = dataclasses.replace(plan.model, file=addresses.get(plan.model.file, plan.model.file))
    file = plan.draft.file if plan.draft else None
    draft = dataclasses.replace(plan.draft, file=addresses.get(file, file)) if plan.draft and file else plan.draft
    return dataclasses.replace(plan, model=model, draft=draft)


def _not_fetched(models: Iterable[ModelFile], world: World) -> Iterator[str]:
    for each in models:
        if each.hub:
            missing, free = size(missing_bytes([each.hub], world)), size(world.hub.free(world.hub.cache.folder))
            yield f"planned from the header of {file_names(each.hub)}: {missing} to download, {free} free"


ESTIMATED = (
    "compute buffers are an estimate for a device that is not here: the CPU's dry run, a quarter added where a part is offloaded"
)


def dry_run_elsewhere(on_cpu: DryRun, plan: Plan) -> tuple[DeviceBytes, ...]:
    """The CPU's dry run, booked to the plan's device (FACTS: 8B shape 112 MiB on the CPU, 96 to 116 on lavapipe)."""
    draft = dataclasses.replace(plan.draft, device=None) if plan.draft else None
    (found,) = on_cpu(dataclasses.replace(plan, device=None, gpu_layers=0, cpu_moe_layers=0, draft=draft))
    if not plan.device:
        return (found,)
    partial = plan.gpu_layers < plan.model.offloadable_layers or plan.cpu_moe_layers > 0
    compute = found.compute * 5 // 4 if partial else found.compute
    on_host = dataclasses.replace(found, compute=found.compute if partial else 0)
    return on_host, DeviceBytes(plan.device, "gpu", compute=compute)


def check(model: str, wishes: Wishes, world: World) -> tuple[Plan, list[Check]]:
    """The plan's terms beside llama.cpp's dry run: its compute and output buffers, and where it would put each block.

    Not the draft's: `check_load` has them.
    """
    target = read_model(model, world, wishes.quant, hollow=True)
    draft, notes = read_draft(draft_wanted(target, wishes, world), target, world)
    world = remembering(target, world)
    begun = started(world, wishes)
    with begun.engine as engine:
        planner = _settled(_planner(begun, target, draft, world), model, wishes, world)
        decided = _with_notes(planner.decide(wishes).plan, [*planner.target.notes, *notes])
        info = planner.info_for(decided)
        found = as_dry_run(decided, info, dry_run(engine, decided, world))
    return decided, compared(without_draft(as_reserved(decided, info)), without_draft(found))


def check_load(model: str, wishes: Wishes, world: World) -> tuple[Plan, list[Check], Peak]:
    """The plan loaded for real, its terms beside llama.cpp's buffers, and the peak of a prompt longer than ubatch."""
    target = read_model(model, world, wishes.quant)
    draft, notes = read_draft(draft_wanted(target, wishes, world), target, world)
    world = remembering(target, world)
    begun = started(world, wishes)
    with begun.engine as engine:
        planner = _settled(_planner(begun, target, draft, world), model, wishes, world)
        target = planner.target
        decided = _with_notes(planner.decide(wishes).plan, [*target.notes, *notes])
        limit = engine.tensor_limit(decided.device) if decided.device else None
        before = {device.id: device.free_bytes for device in engine.devices()}
        *_, loaded = engine.load(decided)
        for _ in engine.generate(_long_prompt(decided)):
            pass
        peak = Peak(
            host=engine.peak_bytes(),
            devices={device.id: before[device.id] - device.free_bytes for device in engine.devices() if device.kind != "cpu"},
        )
    assert isinstance(loaded, Loaded)
    return decided, compared(_as_logged(decided, target, draft, limit), loaded.devices), peak


def _with_notes(plan: Plan, notes: list[str]) -> Plan:
    return dataclasses.replace(plan, notes=(*notes, *plan.notes))


def _as_logged(plan: Plan, target: ModelFile, draft: ModelFile | None, limit: int | None) -> tuple[DeviceBytes, ...]:
    """The plan's bytes as llama.cpp logs them: as the host's weights the mapped range, with what is between."""
    more, more_of_draft = _mapped_between(target, plan.gpu_layers, plan.cpu_moe_layers, limit), 0
    if draft and plan.draft and plan.draft.device:
        more_of_draft = _mapped_between(draft, draft.info.offloadable_layers, 0, limit)
    elif draft:
        more_of_draft = _mapped_between(draft, 0, 0, None)
    return tuple(
        dataclasses.replace(place, weights=place.weights + more, draft=place.draft + more_of_draft) if place.id == HOST else place
        for place in as_reserved(plan, target.info)
    )


def _mapped_between(file: ModelFile, gpu_layers: int, cpu_moe_layers: int, limit: int | None) -> int:
    """By how much the mapped range of a file is more than what is used of it on the host."""
    names = {each.name for each in refused(file.info, limit)}
    mapped = mapped_bytes(gguf_file.read_header(Path(file.model.file)), gpu_layers, cpu_moe_layers, names)
    return mapped - host_weights(seen_by(file.info, limit), gpu_layers, cpu_moe_layers)


def _long_prompt(plan: Plan) -> Request:
    """A prompt of more than one micro-batch: buffers have been seen to grow then (FACTS: the reserve is not the peak)."""
    numbers = min(5 * plan.ubatch // 8, plan.context // 8)  # two tokens and more each
    words = " ".join(str(100 + number) for number in range(numbers))
    return Request((Message("user", words),), Sampling(temperature=0), max_tokens=1)

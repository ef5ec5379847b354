"""From a model, a machine, a profile and the wishes to a plan, with reasons. Pure; llama.cpp's dry run is handed in.

First version: as many whole layers on one device as its memory holds with headroom, the rest on the CPU.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tokencli.core import Device, DeviceBytes, Draft, Machine, Model, ModelInfo, Plan, Profile
from tokencli.errors import DoesNotFit, UsageError
from tokencli.plan.choose import (
    Rejected,
    Wishes,
    choose_device,
    choose_draft,
    choose_profile,
    is_software,
    rejected_devices,
)
from tokencli.plan.memory import placed, refusal
from tokencli.plan.settings import Settings, first_given
from tokencli.plan.sizes import Budgets, DryRun, ModelFile, merged, predicted

ALL = -1
SMALLEST_CONTEXT = 512


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that makes a plan smaller: what to type, and how many bytes it saves."""

    change: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan with predicted bytes per device, other plans, what was left out and why, and what would save memory."""

    plan: Plan
    alternatives: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    fixes: tuple[Fix, ...]


@dataclass(frozen=True, slots=True)
class Planner:
    """All that is known before a decision. `dry_run` tells compute and output bytes by device for a plan."""

    target: ModelFile
    machine: Machine
    profiles: tuple[Profile, ...]
    dry_run: DryRun
    draft: ModelFile | None = None
    extra_buffers: bool = True

    def plan(self, wishes: Wishes) -> Plan:
        """The best plan. Raises UsageError for a wish that nothing here can meet, DoesNotFit with the change that would help."""
        plan, budgets = self._placed(wishes)
        _check_fits(plan, self.target.info, budgets, lambda each: placed(each, self.target.info))
        return plan

    def decide(self, wishes: Wishes) -> Decision:
        """The best plan with its predicted bytes, and what else there is to know."""
        plan, budgets = self._placed(wishes)
        sized = self._sized(plan, budgets)
        _check_fits(plan, self.target.info, budgets, lambda each: self._sized(each, budgets).devices)
        device = next((each for each in self.machine.devices if each.id == plan.device), None)
        return Decision(
            plan=sized,
            alternatives=tuple(self._alternatives(plan, wishes)),
            rejected=tuple(rejected_devices(self.machine, device)),
            fixes=tuple(self._fixes(sized, budgets)),
        )

    def _placed(self, wishes: Wishes) -> tuple[Plan, Budgets]:
        device = choose_device(self.machine, wishes)
        profile = choose_profile(self.profiles, device, wishes.profile)
        settings = Settings(wishes.flags(), {}, profile)
        budgets = Budgets.of(self.machine, device, profile)
        plan = _unplaced(self.target.model, self.machine, device, settings, wishes)
        plan = dataclasses.replace(
            plan,
            draft=choose_draft(settings, self.draft),
            extra_buffers=self.extra_buffers,
            notes=tuple(_remarks(plan, self.target.info, self.extra_buffers)),
        )
        if why := refusal(self.target.info, plan.kv_type, plan.flash_attention):
            raise UsageError(why, "use --kv-type f16")
        if device:
            plan = self._on_device(plan, device, wishes.gpu_layers, budgets)
            if wishes.gpu_layers is not None:  # what was asked for is tried: the device itself may say no
                budgets = dataclasses.replace(budgets, device=budgets.device + self._beyond(plan, budgets))
        return dataclasses.replace(plan, origins=dict(settings.origins)), budgets

    def _on_device(self, plan: Plan, device: Device, wanted: int | None, budgets: Budgets) -> Plan:
        """The plan with its layers, and its draft where there is room for all of it, on the device."""
        notes = list(plan.notes)
        if is_software(device):
            notes.append(f"{device.id} is a software device ({device.description})")
        full = plan.model.offloadable_layers
        if wanted is None:
            count = self._most_that_fit(plan, budgets)
            if count < full:
                notes.append(_partly(count, plan, budgets))
        else:
            count = full if wanted == ALL else min(wanted, full)
            asked = dataclasses.replace(plan, gpu_layers=count)
            if beyond := self._beyond(asked, budgets):
                notes.append(f"{count} layers need {_gib(beyond)} more than should be used of {device.id}, as asked for")
        plan = dataclasses.replace(plan, gpu_layers=count, notes=tuple(notes))
        if count == 0:
            return dataclasses.replace(plan, device=None, backend="cpu")
        return self._with_draft_beside(plan, budgets) if self.draft and count == full else plan

    def _most_that_fit(self, plan: Plan, budgets: Budgets) -> int:
        """The most layers that the budgets hold, compute buffer included.

        The compute buffer is the dry run's: one at full offload, one at half, as it is larger at partial offload (A2-27).
        """
        full = plan.model.offloadable_layers
        alone = dataclasses.replace(plan, draft=None if _is_model(plan.draft) else plan.draft)
        for counts in ([full], range(full - 1, 0, -1)):
            tried = dataclasses.replace(alone, gpu_layers=counts[len(counts) // 2])
            compute = self.dry_run(tried)
            for count in counts:
                places = (*placed(dataclasses.replace(alone, gpu_layers=count), self.target.info), *compute)
                if not budgets.missing(merged(places)):
                    return count
        return 0

    def _beyond(self, plan: Plan, budgets: Budgets) -> int:
        """Bytes by which the plan exceeds its device's budget, compute buffers not counted."""
        on_device = sum(place.total for place in placed(plan, self.target.info) if place.id == plan.device)
        return max(on_device - budgets.device, 0)

    def _with_draft_beside(self, plan: Plan, budgets: Budgets) -> Plan:
        """The draft on the device too where all fits; else it stays on the CPU, and the note says so."""
        assert plan.draft
        beside = dataclasses.replace(plan, draft=dataclasses.replace(plan.draft, device=plan.device))
        if not budgets.missing(predicted(beside, self.target.info, self.draft, self.dry_run)):
            return beside
        return dataclasses.replace(plan, notes=(*plan.notes, f"the draft runs on the CPU: {plan.device} has no room for it"))

    def _sized(self, plan: Plan, budgets: Budgets) -> Plan:
        """The plan with predicted bytes and budgets per device."""
        limits = {"CPU": budgets.host, plan.device: budgets.device}
        places = predicted(plan, self.target.info, self.draft, self.dry_run)
        kinds = {each.id: each.kind for each in self.machine.devices}
        devices = (dataclasses.replace(each, kind=kinds.get(each.id, "cpu"), budget=limits.get(each.id)) for each in places)
        return dataclasses.replace(plan, devices=tuple(devices))

    def _alternatives(self, plan: Plan, wishes: Wishes) -> Iterator[Plan]:
        """Plans that differ in kind: the CPU alone, where a GPU was chosen and not asked for."""
        if plan.device and wishes.device is None and wishes.gpu_layers is None:
            other, budgets = self._placed(dataclasses.replace(wishes, gpu_layers=0))
            sized = self._sized(other, budgets)
            if not budgets.missing(sized.devices):
                yield sized

    def _fixes(self, plan: Plan, budgets: Budgets) -> Iterator[Fix]:
        """Single changes that save memory, and how much; the context last, as it is what a user notices."""
        before = sum(place.total for place in plan.devices)
        for change, smaller in smaller_plans(plan, self.target.info):
            after = sum(place.total for place in self._sized(smaller, budgets).devices)
            if after < before and " and " not in change:
                yield Fix(change, before - after)


def _check_fits(plan: Plan, info: ModelInfo, budgets: Budgets, size: Callable[[Plan], tuple[DeviceBytes, ...]]) -> None:
    """Raises DoesNotFit with the miss, and with the first change that would make it fit."""
    places = size(plan)
    missing = budgets.missing(places)
    if not missing:
        return
    needed = sum(place.total for place in places)
    helping = (change for change, smaller in smaller_plans(plan, info) if not budgets.missing(size(smaller)))
    raise DoesNotFit(
        f"{plan.model.name} needs {_gib(needed)} at a context of {plan.context}, {_gib(missing)} more than may be used here",
        next((f"{change} would make it fit" for change in helping), f"take a smaller quant or model: {_gib(missing)} must go"),
    )


def smaller_plans(plan: Plan, info: ModelInfo) -> Iterator[tuple[str, Plan]]:
    """Changes that make a plan smaller, the cheapest for the user first: the cache's type, then the context, then both."""
    can_quantise = plan.kv_type == "f16" and not refusal(info, "q8_0", plan.flash_attention)
    quantised = ("--kv-type q8_0", dataclasses.replace(plan, kv_type="q8_0")) if can_quantise else None
    if quantised:
        yield quantised
    context = plan.context // 2
    shorter = []
    while context >= SMALLEST_CONTEXT:
        shorter.append((f"--context {context}", dataclasses.replace(plan, context=context)))
        context //= 2
    yield from shorter
    if quantised:
        yield from ((f"{change} and {quantised[0]}", dataclasses.replace(each, kv_type="q8_0")) for change, each in shorter)


def _unplaced(model: Model, machine: Machine, device: Device | None, settings: Settings, wishes: Wishes) -> Plan:
    """The plan but for what goes where: everything on the CPU."""
    context = settings.take("context")
    if wishes.context is None and model.context_trained and model.context_trained < context:
        context, settings.origins["context"] = model.context_trained, "model"
    threads, settings.origins["threads"] = first_given(("flag", wishes.threads), ("machine", machine.cores))
    return Plan(
        model=model,
        backend=device.id.rstrip("0123456789").lower() if device else "cpu",
        device=device.id if device else None,
        profile=settings.profile.name,
        gpu_layers=0,
        context=context,
        threads=threads,
        kv_type=settings.take("kv_type"),
        batch=settings.take("batch"),
        ubatch=settings.take("ubatch"),
        flash_attention=settings.take("flash_attention"),
    )


def _remarks(plan: Plan, info: ModelInfo, extra_buffers: bool) -> Iterator[str]:
    if info.context_trained and plan.context > info.context_trained:
        yield f"a context of {plan.context} is more than the {info.context_trained} the model was trained for"
    if not extra_buffers:
        yield "without the CPU's extra buffers: this build crashed with them on this CPU (slower prefill)"


def _is_model(draft: Draft | None) -> bool:
    return draft is not None and draft.kind == "model"


def _partly(count: int, plan: Plan, budgets: Budgets) -> str:
    """Why not all layers are on the device."""
    placed = f"{count} of {plan.model.offloadable_layers} layers on {plan.device}" if count else "on the CPU"
    return f"{placed}: {_gib(budgets.device)} may be used there, which does not hold all of the model with its context"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

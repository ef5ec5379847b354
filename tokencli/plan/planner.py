"""From a model, a machine, a profile and the wishes to a plan, with reasons. Pure; llama.cpp's dry run is handed in.

As much on one device as its memory holds with headroom (split.py), the rest on the CPU.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tokencli.core import (
    Device,
    DeviceBytes,
    Draft,
    LoadMode,
    Machine,
    Model,
    ModelInfo,
    Plan,
    Prediction,
    Profile,
    Quirk,
    Speeds,
)  # fmt: skip
from tokencli.errors import DoesNotFit, UsageError
from tokencli.plan.choose import (
    ALL,
    Rejected,
    Wishes,
    choose_device,
    choose_draft,
    choose_profile,
    is_software,
    quirks_of,
    rejected_devices,
    tuned_device,
)
from tokencli.plan.memory import HOST, left_out, placed, refusal, seen_by
from tokencli.plan.settings import Settings, Tuned, first_given
from tokencli.plan.sizes import Budgets, DryRun, ModelFile, predicted
from tokencli.plan.smaller import smaller_plans
from tokencli.plan.speed import factor, predict
from tokencli.plan.split import best_split

Size = Callable[[Plan], tuple[DeviceBytes, ...]]


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that makes a plan smaller: what to type, and how many bytes it saves, of `device` alone where one is named.

    `decode_factor`: decode speed with it over that without, None where neither is known.
    """

    change: str
    bytes: int
    device: str | None = None
    decode_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan with predicted bytes per device, other plans, what was left out and why, and what would save memory."""

    plan: Plan
    alternatives: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    fixes: tuple[Fix, ...]


@dataclass(frozen=True, slots=True)
class Planner:
    """All that is known before a decision. `dry_run` tells compute and output bytes by device for a plan, `tensor_limit` the
    largest matrix that a device takes, `speeds` what becomes of nominal bandwidths, `tuned` what was measured to be fastest.
    """

    target: ModelFile
    machine: Machine
    profiles: tuple[Profile, ...]
    dry_run: DryRun
    draft: ModelFile | None = None
    extra_buffers: bool = True
    tensor_limit: Callable[[str], int | None] = lambda _device: None
    speeds: Speeds | None = None
    margin: Callable[[Device], int] = lambda _device: 0
    tuned: Tuned | None = None

    def plan(self, wishes: Wishes) -> Plan:
        """The best plan. Raises UsageError for a wish that nothing here can meet, DoesNotFit with the change that would help."""
        plan, budgets = self._placed(wishes)
        self._check_fits(plan, wishes, budgets, lambda each: placed(each, self.info_for(each)))
        return dataclasses.replace(plan, predicted=self._speed(plan))

    def decide(self, wishes: Wishes) -> Decision:
        """The best plan with its predicted bytes, and what else there is to know."""
        plan, budgets = self._placed(wishes)
        sized = self._sized(plan, budgets)
        self._check_fits(plan, wishes, budgets, lambda each: self._sized(each, budgets).devices)
        device = next((each for each in self.machine.devices if each.id == plan.device), None)
        return Decision(
            plan=sized,
            alternatives=tuple(self._alternatives(plan, wishes)),
            rejected=tuple(rejected_devices(self.machine, device)),
            fixes=tuple(self._fixes(sized, budgets)),
        )

    def info_for(self, plan: Plan) -> ModelInfo:
        """The target as the plan's device has it: without what is too large for its buffers."""
        return seen_by(self.target.info, self._limit(self.target.info, plan.device))

    def _limit(self, info: ModelInfo, device: str | None) -> int | None:
        return self.tensor_limit(device) if device and info.large_tensors else None

    def _predicted(self, plan: Plan) -> tuple[DeviceBytes, ...]:
        draft = self.draft
        if draft and plan.draft:
            draft = dataclasses.replace(draft, info=seen_by(draft.info, self._limit(draft.info, plan.draft.device)))
        return predicted(plan, self.info_for(plan), draft, self.dry_run)

    def _placed(self, wishes: Wishes) -> tuple[Plan, Budgets]:
        if wishes.cpu_moe is not None and not self.target.info.experts:
            raise UsageError(f"--cpu-moe is for mixtures of experts, and {self.target.model.name} has no experts", "leave it out")
        quirks = [each for profile in self.profiles for each in profile.quirks]
        device = choose_device(self.machine, tuned_device(wishes, self.tuned, self.machine), quirks)
        profile = choose_profile(self.profiles, device, wishes.profile)
        tuned = self.tuned if self.tuned and self.tuned.device in (None, device.id if device else HOST) else None
        settings = Settings(wishes.flags(), tuned.values if tuned else {}, profile)
        margin = self.margin(device) if device else 0
        budgets = Budgets.of(self.machine, device, profile, margin)
        plan = _unplaced(self.target.model, self.machine, device, settings, wishes)
        plan = dataclasses.replace(
            plan,
            draft=choose_draft(settings, self.draft, recurrent=self.target.info.is_recurrent),
            extra_buffers=self.extra_buffers and settings.tuned.get("extra_buffers", True),
            load_mode=_load_mode(quirks_of(device, quirks)) if device else "auto",
            notes=(*_busy(plan, self.machine), *_remarks(plan, self.target.info, self.extra_buffers), *_told(tuned)),
        )
        if margin:
            earlier = f"a {plan.model.architecture} model that should have fitted did not (tokencli doctor --forget)"
            plan = _noted(plan, f"{_gib(margin)} of {plan.device} are left free: {earlier}")
        if why := refusal(self.target.info, plan.kv_type, plan.flash_attention):
            raise UsageError(why, "use --kv-type f16")
        if device:
            plan = self._on_device(plan, device, wishes, budgets, settings)
            if wishes.gpu_layers is not None:  # what was asked for is tried: the device itself may say no
                budgets = dataclasses.replace(budgets, device=budgets.device + self._beyond(plan, budgets))
        plan = _noted(plan, *self._read_again(plan, budgets))
        return dataclasses.replace(plan, origins=dict(settings.origins)), budgets

    def _on_device(self, plan: Plan, device: Device, wishes: Wishes, budgets: Budgets, settings: Settings) -> Plan:
        """The plan with its layers, and its draft where there is room for all of it, on the device."""
        if is_software(device):
            plan = _noted(plan, f"{device.id} is a software device ({device.description})")
        experts = _experts_wanted(wishes, self.target.info)
        if wishes.gpu_layers is None:
            plan = _as_tuned(self._as_much_as_fits(plan, experts, budgets), wishes, settings)
        else:
            plan = self._as_asked(plan, wishes.gpu_layers, experts or 0, budgets)
        if plan.gpu_layers == 0:
            return dataclasses.replace(plan, device=None, backend="cpu", cpu_moe_layers=0, load_mode="auto")
        plan = _noted(plan, *self._left_out(plan))
        all_layers = plan.gpu_layers == plan.model.offloadable_layers
        return self._with_draft_beside(plan, budgets) if self.draft and all_layers else plan

    def _as_much_as_fits(self, plan: Plan, experts: int | None, budgets: Budgets) -> Plan:
        alone = dataclasses.replace(plan, draft=None if _is_model(plan.draft) else plan.draft)
        split = best_split(alone, self.info_for(plan), budgets, self.dry_run, experts)
        plan = dataclasses.replace(plan, gpu_layers=split.gpu_layers, cpu_moe_layers=split.cpu_moe_layers)
        if plan.gpu_layers < plan.model.offloadable_layers or plan.cpu_moe_layers > (experts or 0):
            return _noted(plan, _partly(plan, experts is None, budgets))
        return plan

    def _as_asked(self, plan: Plan, layers: int, experts: int, budgets: Budgets) -> Plan:
        full = plan.model.offloadable_layers
        plan = dataclasses.replace(plan, gpu_layers=full if layers == ALL else min(layers, full), cpu_moe_layers=experts)
        if beyond := self._beyond(plan, budgets):
            what = f"{plan.gpu_layers} layers need {_gib(beyond)} more than should be used of {plan.device}, as asked for"
            return _noted(plan, what)
        return plan

    def _left_out(self, plan: Plan) -> Iterator[str]:
        """What the device has no buffers for, if anything."""
        limit = self._limit(self.target.info, plan.device)
        names, size = left_out(plan, self.target.info, limit)
        if limit is not None and names:
            what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            why = f"{plan.device} takes no matrix, or result of one, above {limit >> 20} MiB"
            yield f"{what} ({size >> 20} MiB) left on the CPU: {why}"

    def _read_again(self, plan: Plan, budgets: Budgets) -> Iterator[str]:
        """Mapped weights may be more than what is free of the RAM now: it works, and it costs time."""
        host, *_ = placed(plan, self.info_for(plan))
        if host.total > budgets.host:
            part = f"{_gib(host.weights)} of weights are mapped for the CPU, of {_gib(budgets.host)} of RAM that may be used now"
            yield f"{part}: what does not stay there is read from the disk again"

    def _beyond(self, plan: Plan, budgets: Budgets) -> int:
        """Bytes by which the plan exceeds its device's budget, compute buffers not counted."""
        on_device = sum(place.total for place in placed(plan, self.info_for(plan)) if place.id == plan.device)
        return max(on_device - budgets.device, 0)

    def _with_draft_beside(self, plan: Plan, budgets: Budgets) -> Plan:
        """The draft on the device too where all fits; else it stays on the CPU, and the note says so."""
        assert plan.draft
        beside = dataclasses.replace(plan, draft=dataclasses.replace(plan.draft, device=plan.device))
        if not budgets.missing(self._predicted(beside)):
            return beside
        return _noted(plan, f"the draft runs on the CPU: {plan.device} has no room for it")

    def _sized(self, plan: Plan, budgets: Budgets) -> Plan:
        """The plan with predicted bytes and budgets per device."""
        limits = {"CPU": budgets.host, plan.device: budgets.device}
        places = self._predicted(plan)
        kinds = {each.id: each.kind for each in self.machine.devices}
        devices = (dataclasses.replace(each, kind=kinds.get(each.id, "cpu"), budget=limits.get(each.id)) for each in places)
        return dataclasses.replace(plan, devices=tuple(devices), predicted=self._speed(plan))

    def _speed(self, plan: Plan) -> Prediction:
        if self.speeds is None:
            return Prediction()
        return predict(plan, self.target.info, self.machine, self.speeds, seen=self.info_for(plan))

    def _check_fits(self, plan: Plan, wishes: Wishes, budgets: Budgets, size: Size) -> None:
        """Raises DoesNotFit with the miss, and with the first change that would make it fit."""
        places = size(plan)
        missing = budgets.missing(places)
        if not missing:
            return
        needed = sum(place.total for place in places)
        raise DoesNotFit(
            f"{plan.model.name} needs {_gib(needed)} at a context of {plan.context}, {_gib(missing)} more than may be used here",
            next(
                (f"{change} would make it fit" for change in self._helping(plan, wishes, size)),
                f"take a smaller quant or model: {_gib(missing)} must go",
            ),
        )

    def _helping(self, plan: Plan, wishes: Wishes, size: Size) -> Iterator[str]:
        """Changes that make it fit, split anew: what one frees on a device may be needed on the other."""

        def fits(wanted: Wishes) -> bool:
            split, budgets = self._placed(wanted)
            return not budgets.missing(size(split))

        if wishes.cpu_moe is not None and fits(dataclasses.replace(wishes, cpu_moe=None)):
            yield "leaving out --cpu-moe"
        for change, smaller in smaller_plans(plan, self.target.info):
            experts = wishes.cpu_moe if smaller.cpu_moe_layers == plan.cpu_moe_layers else smaller.cpu_moe_layers
            if fits(dataclasses.replace(wishes, context=smaller.context, kv_type=smaller.kv_type, cpu_moe=experts)):
                yield change

    def _alternatives(self, plan: Plan, wishes: Wishes) -> Iterator[Plan]:
        """Plans that differ in kind: the CPU alone, where a GPU was chosen and not asked for."""
        if plan.device and wishes.device is None and wishes.gpu_layers is None:
            other, budgets = self._placed(dataclasses.replace(wishes, gpu_layers=0))
            sized = self._sized(other, budgets)
            if not budgets.missing(sized.devices):
                yield sized

    def _fixes(self, plan: Plan, budgets: Budgets) -> Iterator[Fix]:
        """Single changes that save memory, and how much; the context last, as it is what a user notices."""
        for change, smaller in smaller_plans(plan, self.target.info):
            if " and " in change:
                continue
            where = plan.device if smaller.cpu_moe_layers != plan.cpu_moe_layers else None  # the host has as much more
            sized = self._sized(smaller, budgets)
            saved = _total(plan, where) - _total(sized, where)
            if saved > 0 and not (where and budgets.missing(sized.devices)):
                yield Fix(change, saved, where, factor(sized.predicted, plan.predicted))


def _unplaced(model: Model, machine: Machine, device: Device | None, settings: Settings, wishes: Wishes) -> Plan:
    """The plan but for what goes where: everything on the CPU."""
    context = settings.take("context")
    if wishes.context is None and model.context_trained and model.context_trained < context:
        context, settings.origins["context"] = model.context_trained, "model"
    free, tuned = machine.threads, settings.tuned.get("threads")
    threads, settings.origins["threads"] = first_given(
        ("flag", wishes.threads), ("tuned", min(tuned, free) if tuned else None), ("machine", free)
    )
    batch_threads = settings.tuned.get("batch_threads") if wishes.threads is None else None
    return Plan(
        model=model,
        backend=device.backend if device else "cpu",
        device=device.id if device else None,
        profile=settings.profile.name,
        gpu_layers=0,
        context=context,
        threads=threads,
        batch_threads=min(batch_threads, free) if batch_threads else None,
        kv_type=settings.take("kv_type"),
        batch=settings.take("batch"),
        ubatch=settings.take("ubatch"),
        flash_attention=settings.take("flash_attention"),
    )


def _busy(plan: Plan, machine: Machine) -> Iterator[str]:
    if plan.threads == machine.threads < dataclasses.replace(machine, busy_cores=None).threads:
        yield f"{plan.threads} of {machine.cores} cores used: other programs keep {machine.busy_cores:.1f} of them busy"


def _remarks(plan: Plan, info: ModelInfo, extra_buffers: bool) -> Iterator[str]:
    if info.context_trained and plan.context > info.context_trained:
        yield f"a context of {plan.context} is more than the {info.context_trained} the model was trained for"
    if info.index_cache:
        yield "the index cache of this model's sparse attention is not counted: the KV cache takes more than is said here"
    if not extra_buffers:
        yield "without the CPU's extra buffers: this build crashed with them on this CPU (slower prefill)"


def _as_tuned(plan: Plan, wishes: Wishes, settings: Settings) -> Plan:
    """The split that was measured to be faster than as much as fits: with less on the device, never with more."""
    layers, experts = settings.tuned.get("gpu_layers"), settings.tuned.get("cpu_moe")
    if layers is not None and layers < plan.gpu_layers:
        plan, settings.origins["gpu_layers"] = dataclasses.replace(plan, gpu_layers=layers), "tuned"
    if experts is not None and wishes.cpu_moe is None and experts > plan.cpu_moe_layers:
        plan, settings.origins["cpu_moe"] = dataclasses.replace(plan, cpu_moe_layers=experts), "tuned"
    return plan


def _told(tuned: Tuned | None) -> Iterator[str]:
    if tuned and tuned.note:
        yield tuned.note


def _load_mode(quirks: list[Quirk]) -> LoadMode:
    return next((each.load_mode for each in quirks if each.load_mode != "auto"), "auto")


def _noted(plan: Plan, *notes: str) -> Plan:
    return dataclasses.replace(plan, notes=(*plan.notes, *notes))


def _is_model(draft: Draft | None) -> bool:
    return draft is not None and draft.kind == "model"


def _experts_wanted(wishes: Wishes, info: ModelInfo) -> int | None:
    """Of how many blocks the experts are to stay on the CPU; None where that is left to us."""
    if wishes.cpu_moe is None:
        return None
    return info.trunk_layers if wishes.cpu_moe == ALL else min(wishes.cpu_moe, info.trunk_layers)


def _partly(split: Plan, experts_decided: bool, budgets: Budgets) -> str:
    """Why not all of the model is on the device."""
    where = (
        f"{split.gpu_layers} of {split.model.offloadable_layers} layers on {split.device}" if split.gpu_layers else "on the CPU"
    )
    if split.cpu_moe_layers and experts_decided:
        where += f", the experts of the first {split.cpu_moe_layers} blocks on the CPU"
    return f"{where}: {_gib(budgets.device)} may be used there, which does not hold all of the model with its context"


def _total(plan: Plan, device: str | None) -> int:
    """Bytes of the plan, on one device or on all."""
    return sum(place.total for place in plan.devices if device in (None, place.id))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 100 << 20 else f"{size / 2**20:.0f} MiB"

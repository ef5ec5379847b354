"""From a model, a machine, a profile and the wishes to a plan, with reasons. Pure; llama.cpp's dry run is handed in.

As much on one device as its memory holds with headroom (split.py), the rest on the CPU.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tokencli.core import Device, DeviceBytes, Draft, LoadMode, Machine, ModelInfo, Plan, Prediction, Profile, Quirk, Speeds
from tokencli.errors import DoesNotFit, UsageError
from tokencli.listing import normal
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
from tokencli.plan.fixes import Fix, priced
from tokencli.plan.loss import FLOOR, without_kernel
from tokencli.plan.memory import HOST, left_out, placed, refusal, seen_by
from tokencli.plan.offers import offered_besides
from tokencli.plan.partner import Offer, Partner, offer, unpaid
from tokencli.plan.remarks import READ_AGAIN, busy, experts_wanted, gib, larger_gtt, partly, remarks, unplaced
from tokencli.plan.search import Search, Setting, grade
from tokencli.plan.settings import Settings, Tuned
from tokencli.plan.shared import loaded_once
from tokencli.plan.sizes import Budgets, DryRun, ModelFile, predicted
from tokencli.plan.smaller import smaller_plans
from tokencli.plan.speed import PROMPT, pass_seconds, predict
from tokencli.plan.split import best_split
from tokencli.plan.vary import as_tuned, check_speed, check_speed_of, lowered, tell_origins, varied, within_loss
from tokencli.plan.why import KINDS, reason

FASTER = 1.25  # from here on a smaller quant is worth telling of
Size = Callable[[Plan], tuple[DeviceBytes, ...]]


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan with predicted bytes per device, other plans, what was left out and why, and what would save memory.

    `why`: the answer to why something else was not taken, where that was asked. `offer`: the catalogue's draft, if none is used.
    """

    plan: Plan
    alternatives: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    fixes: tuple[Fix, ...]
    why: str | None = None
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Planner:
    """All that is known before a decision. `dry_run` tells compute and output bytes by device for a plan, `tensor_limit` the
    largest matrix that a device takes, `speeds` what becomes of nominal bandwidths, `tuned` what was measured to be fastest,
    `partner` the draft that the catalogue names.
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
    partner: Partner | None = None

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
        rejected = [*self._without_kernels(wishes), *rejected_devices(self.machine, device)]
        return Decision(
            plan=_noted(sized, *self.target.measured.notes),
            alternatives=(*self._on_the_cpu(plan, wishes), *self._runners_up(sized, wishes)),
            rejected=tuple({each.what: each for each in reversed(rejected)}.values()),
            fixes=priced(
                sized,
                self.target.info,
                lambda each: self._sized(each, budgets),
                lambda each: not budgets.missing(each.devices),
            ),
            offer=self._offer(self.partner, sized, budgets)
            if self.partner and not sized.draft and wishes.draft != "off"
            else None,
        )

    def info_for(self, plan: Plan) -> ModelInfo:
        """The target as the plan's device has it: without what is too large for its buffers."""
        return seen_by(self.target.info, self._limit(self.target.info, plan.device))

    def _limit(self, info: ModelInfo, device: str | None) -> int | None:
        return self.tensor_limit(device) if device and info.large_tensors else None

    def _predicted(self, plan: Plan) -> tuple[DeviceBytes, ...]:
        draft = self.draft if plan.draft else None
        if draft and plan.draft:
            draft = dataclasses.replace(draft, info=seen_by(draft.info, self._limit(draft.info, plan.draft.device)))
        return predicted(plan, self.info_for(plan), draft, self.dry_run)

    def _placed(self, wishes: Wishes) -> tuple[Plan, Budgets]:
        within_loss([self.target], wishes.max_loss)
        wishes = tuned_device(wishes, self.tuned, self.machine)
        plan, settings, budgets = self._begun(wishes)
        on_device = plan.device is not None
        if wishes.gpu_layers is None or not on_device:
            plan = as_tuned(self._searched(plan, wishes, settings, budgets), wishes, settings)
        else:
            experts = experts_wanted(wishes, self.target.info)
            plan = self._as_asked(plan, wishes.gpu_layers, experts or 0, budgets)
            check_speed_of(plan, self._search(plan, wishes, budgets).decode(plan, self.target.info), wishes)
        if on_device:
            plan = self._on_device(plan, budgets)
            plan = loaded_once(plan, self.info_for(plan), budgets)
            if wishes.gpu_layers is not None:  # what was asked for is tried: the device itself may say no
                budgets = dataclasses.replace(budgets, device=budgets.device + self._beyond(plan, budgets))
        if plan.draft and self.draft and wishes.draft == "auto" and not settings.tuned.get("draft"):
            plan = self._if_it_pays(plan, self.draft, budgets)
        plan = _noted(plan, *self._lost_much(), *self._read_again(plan, budgets))
        plan = _noted(plan, self.speeds.note) if self.speeds and self.speeds.note else plan
        return dataclasses.replace(plan, origins=dict(settings.origins)), budgets

    def _begun(self, wishes: Wishes) -> tuple[Plan, Settings, Budgets]:
        """The plan before anything is placed or given up, and what its settings come from."""
        if wishes.cpu_moe is not None and not self.target.info.experts:
            raise UsageError(f"--cpu-moe is for mixtures of experts, and {self.target.model.name} has no experts", "leave it out")
        wishes = tuned_device(wishes, self.tuned, self.machine)
        device = self._with_kernels(choose_device(self.machine, wishes, self._quirks), wishes)
        profile = choose_profile(self.profiles, device, wishes.profile)
        tuned = self.tuned if self.tuned and self.tuned.device in (None, device.id if device else HOST) else None
        settings = Settings(wishes.flags(), tuned.values if tuned else {}, profile)
        margin = self.margin(device) if device else 0
        plan = unplaced(self.target.model, self.machine, device, settings, wishes)
        notes = [*busy(plan, self.machine), *remarks(plan, self.target.info, self.extra_buffers)]
        if device and is_software(device):
            notes.append(f"{device.id} is a software device ({device.description})")
        if margin:
            earlier = f"a {plan.model.architecture} model that should have fitted did not (tokencli doctor --forget)"
            notes.append(f"{gib(margin)} of {plan.device} are left free: {earlier}")
        if tuned and tuned.note:
            notes.append(tuned.note)
        plan = dataclasses.replace(
            plan,
            draft=choose_draft(settings, self.draft, recurrent=self.target.info.is_recurrent),
            extra_buffers=self.extra_buffers and settings.tuned.get("extra_buffers", True),
            load_mode=settings.tuned.get("load_mode") or (_load_mode(quirks_of(device, self._quirks)) if device else "auto"),
            notes=tuple(notes),
        )
        if why := refusal(self.target.info, plan.kv_type, plan.flash_attention):
            raise UsageError(why, "use --kv-type f16")
        return plan, settings, Budgets.of(self.machine, device, profile, margin)

    @property
    def _quirks(self) -> list[Quirk]:
        return [each for profile in self.profiles for each in profile.quirks]

    def _with_kernels(self, device: Device | None, wishes: Wishes) -> Device | None:
        """The device, if it can compute with the model's quant, or was asked for."""
        asked = wishes.device is not None or wishes.gpu_layers is not None
        return device if not device or asked or not without_kernel(device.backend, self.target.info.quant) else None

    def _without_kernels(self, wishes: Wishes) -> Iterator[Rejected]:
        device = choose_device(self.machine, wishes, self._quirks)
        if device and not self._with_kernels(device, wishes):
            why = without_kernel(device.backend, self.target.info.quant)
            yield Rejected(f"{device.id} ({device.description})", why or "")

    def _searched(self, plan: Plan, wishes: Wishes, settings: Settings, budgets: Budgets) -> Plan:
        """The best split, cache type, context and micro-batch of those not asked for; the nearest miss where none fits."""
        alone = dataclasses.replace(plan, draft=None if _is_model(plan.draft) else plan.draft)
        experts = experts_wanted(wishes, self.target.info)
        search = self._search(plan, wishes, budgets)
        every = varied(alone, self.target, settings, self._least_context(plan))
        if found := search.best(every):
            best = found.plan
        else:
            check_speed(search, every, wishes)
            best = best_split(alone, self.info_for(plan), budgets, self.dry_run, experts) if plan.device else alone
        tell_origins(best, plan, settings)
        best = dataclasses.replace(best, draft=plan.draft)
        partial = best.gpu_layers < plan.model.offloadable_layers or best.cpu_moe_layers > (experts or 0)
        if plan.device and partial:
            best = _noted(best, *self._why_partly(best, plan, search, experts is None))
        elif plan.device and self._could_be_better(best, search):
            best = _noted(best, *larger_gtt(plan, self.machine, budgets))
        return _noted(best, *lowered(best, plan))

    def _why_partly(self, best: Plan, begun: Plan, search: Search, experts_decided: bool) -> Iterator[str]:
        """Why not all of the model is on the device that was there for it."""
        whole = dataclasses.replace(begun, gpu_layers=begun.model.offloadable_layers)
        there, here = (search.decode(each, self.target.info) or 0.0 for each in (whole, best))
        if not best.gpu_layers and here > there > 0:
            yield f"on the CPU: it decodes faster there than on {begun.device}, by what is predicted"
            return
        yield partly(dataclasses.replace(best, device=begun.device), experts_decided, search.budgets)
        yield from larger_gtt(begun, self.machine, search.budgets)

    def _could_be_better(self, plan: Plan, search: Search) -> bool:
        """Whether a better quant, about as fast, is on offer that the RAM would hold, but not what of it the device may use."""
        speed, lost = grade(search.decode(plan, self.target.info)), self.target.loss
        return any(
            each.loss < lost
            and search.budgets.device < each.model.bytes < search.budgets.host
            and grade(search.decode(plan, each.info)) >= speed
            for each in offered_besides(self.target)
        )

    def _search(self, plan: Plan, wishes: Wishes, budgets: Budgets) -> Search:
        def seen(info: ModelInfo) -> ModelInfo:
            return seen_by(info, self._limit(info, plan.device))

        def decode(each: Plan, info: ModelInfo) -> float | None:
            if self.speeds is None:
                return None
            depth = min(PROMPT, each.context)
            seconds = pass_seconds(each, info, self.machine, self.speeds, depth=depth, seen=seen(info))
            return 1 / seconds if seconds else None

        def compared(each: Plan, info: ModelInfo) -> float | None:
            return decode(each, info) if both_known else None

        # a CPU whose speed is known must not win over a device only because that one's is not
        whole = dataclasses.replace(plan, gpu_layers=plan.model.offloadable_layers, cpu_moe_layers=0)
        none = dataclasses.replace(plan, device=None, backend="cpu", gpu_layers=0, cpu_moe_layers=0)
        both_known = not plan.device or all(decode(each, self.target.info) for each in (whole, none))

        def allowed(each: Plan, speed: float | None) -> bool:
            if wishes.device is not None and plan.device and not each.device:  # a device that was named is kept, if it can be
                return False
            return wishes.target_tps is None or (speed is not None and speed >= wishes.target_tps)

        experts = experts_wanted(wishes, self.target.info)
        return Search(budgets, self.dry_run, compared, seen, experts, wishes.gpu_layers, allowed)

    def _least_context(self, plan: Plan) -> int:
        return next(each.context_least for each in self.profiles if each.name == plan.profile)

    def _on_device(self, plan: Plan, budgets: Budgets) -> Plan:
        """What goes with the layers: what the device refuses is said, and the draft goes there where there is room for it."""
        if plan.gpu_layers == 0:
            return dataclasses.replace(plan, device=None, backend="cpu", cpu_moe_layers=0, load_mode="auto")
        plan = _noted(plan, *self._left_out(plan))
        all_layers = plan.gpu_layers == plan.model.offloadable_layers
        return self._with_draft_beside(plan, budgets) if self.draft and all_layers else plan

    def _as_asked(self, plan: Plan, layers: int, experts: int, budgets: Budgets) -> Plan:
        full = plan.model.offloadable_layers
        plan = dataclasses.replace(plan, gpu_layers=full if layers == ALL else min(layers, full), cpu_moe_layers=experts)
        if beyond := self._beyond(plan, budgets):
            what = f"{plan.gpu_layers} layers need {gib(beyond)} more than should be used of {plan.device}, as asked for"
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

    def _lost_much(self) -> Iterator[str]:
        if self.target.loss > FLOOR:
            quant = self.target.quant
            yield (
                f"{quant}: {self.target.measured.told(quant)}, where up to {FLOOR:g} % are accepted: "
                "a model of fewer parameters with more bits may answer better"
            )

    def _read_again(self, plan: Plan, budgets: Budgets) -> Iterator[str]:
        """Mapped weights may be more than what is free of the RAM now: it works, and it costs time."""
        host, *_ = placed(plan, self.info_for(plan))
        if host.total > budgets.host:
            part = f"{gib(host.weights)} of weights are mapped for the CPU, of {gib(budgets.host)} of RAM that may be used now"
            yield f"{part}: {READ_AGAIN}"

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

    def _offer(self, partner: Partner, plan: Plan, budgets: Budgets) -> Offer:
        profile = next(each for each in self.profiles if each.name == plan.profile)
        return offer(partner, plan, self.info_for(plan), profile.draft_tokens, self.machine, self.speeds, budgets)

    def _if_it_pays(self, plan: Plan, draft: ModelFile, budgets: Budgets) -> Plan:
        """The plan with the draft that nobody named and nobody measured only where it is safe to expect that it pays."""
        alone = dataclasses.replace(plan, draft=None)
        found = self._offer(Partner(draft.model.name, draft, True), self._sized(alone, budgets), budgets)
        if found.pays and plan.draft and found.device == (plan.draft.device or HOST):
            return plan
        return _noted(alone, f"without the draft: {unpaid(found)}")

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
            f"{plan.model.name} needs {gib(needed)} at a context of {plan.context}, {gib(missing)} more than may be used here",
            next(
                (f"{change} would make it fit" for change in self._helping(plan, wishes, size)),
                f"take a smaller quant or model: {gib(missing)} must go",
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
            if fits(
                dataclasses.replace(
                    wishes, context=smaller.context, kv_type=smaller.kv_type, ubatch=smaller.ubatch, cpu_moe=experts
                )
            ):
                yield change

    def choose(self, wishes: Wishes) -> ModelFile:
        """Which of the quants on offer to take: the one of the best plan of all. The smallest where none fits."""
        if not self.target.offered:
            return self.target
        models = within_loss([self.target, *offered_besides(self.target)], wishes.max_loss)
        search, settings = self._over(models, wishes)
        found = search.best(settings)
        if not found:
            check_speed(search, settings, wishes)
        return found.model if found else min(models, key=lambda each: each.model.bytes)

    def _over(self, models: Iterable[ModelFile], wishes: Wishes) -> tuple[Search, list[Setting]]:
        """A search over all that may vary of these models."""
        plan, settings, budgets = self._begun(wishes)
        plan = dataclasses.replace(plan, draft=None if _is_model(plan.draft) else plan.draft)
        least = self._least_context(plan)
        every = [setting for each in models for setting in varied(plan, each, settings, least)]
        return self._search(plan, wishes, budgets), every

    def why(self, name: str, wishes: Wishes) -> str:
        """Why the quant or the kind of split (KINDS) is not what was taken. Raises UsageError for what is neither."""
        models = [self.target, *offered_besides(self.target)]
        search, own = self._over([self.target], wishes)
        taken = search.best(own)
        kind: Callable[[Plan], bool] = KINDS.get(name.lower(), lambda _plan: True)
        named = models if name.lower() in KINDS else [each for each in models if each.quant == normal(name)]
        if not named:
            known = ", ".join([*KINDS, *(each.quant for each in models)])
            raise UsageError(f"--why {name}: there is no such quant or split", f"known here: {known}")
        every = self._over(named, wishes)[1]
        search = dataclasses.replace(search, layers=None, allowed=lambda plan, _: kind(plan))
        other = search.best(every)
        if not other or not taken:
            return f"{name} fits in no way: at least {gib(search.least_missing(every))} too much"
        return f"{name} is what was taken" if other == taken else reason(other, taken)

    def _on_the_cpu(self, plan: Plan, wishes: Wishes) -> Iterator[Plan]:
        """The CPU alone, where a GPU was chosen and not asked for."""
        if plan.device and wishes.device is None and wishes.gpu_layers is None:
            other, budgets = self._placed(dataclasses.replace(wishes, gpu_layers=0, target_tps=None))
            sized = self._sized(other, budgets)
            if not budgets.missing(sized.devices):
                yield sized

    def _runners_up(self, plan: Plan, wishes: Wishes) -> Iterator[Plan]:
        """The best plan that is whole where this one is split, that with a better quant, and that with a faster one."""
        if wishes.gpu_layers is not None:
            return
        models = [self.target, *offered_besides(self.target)]
        lost, speed = self.target.loss, plan.predicted.decode_tokens_per_second or math.inf
        better = [each for each in models if each.loss < lost]
        smaller = [each for each in models if each.loss > lost]
        wanted: list[tuple[list[ModelFile], Callable[[Plan, float | None], bool]]] = [
            (models, lambda each, _: bool(plan.device) and KINDS["whole"](each) and not KINDS["whole"](plan)),
            (better, lambda _each, _: True),
            (smaller, lambda _each, decode: (decode or 0.0) >= FASTER * speed),
        ]
        search, every = self._over(models, dataclasses.replace(wishes, target_tps=None))
        shown = set()
        for of, allowed in wanted:
            found = dataclasses.replace(search, allowed=allowed).best(each for each in every if each.model in of)
            if found and (found.model.quant, found.plan.gpu_layers, found.plan.kv_type) not in shown:
                shown.add((found.model.quant, found.plan.gpu_layers, found.plan.kv_type))
                yield dataclasses.replace(self, target=found.model)._sized(found.plan, search.budgets)


def _load_mode(quirks: list[Quirk]) -> LoadMode:
    return next((each.load_mode for each in quirks if each.load_mode != "auto"), "auto")


def _noted(plan: Plan, *notes: str) -> Plan:
    return dataclasses.replace(plan, notes=(*plan.notes, *notes))


def _is_model(draft: Draft | None) -> bool:
    return draft is not None and draft.kind == "model"

"""The draft that the catalogue names for a model: where it would go beside a plan, what it takes, what it should bring. Pure.

The plan's split is never changed for it. Acceptance is only known while it runs: what is predicted is a range.
"""

import dataclasses
from dataclasses import dataclass

from tokencli.core import DeviceBytes, Draft, Machine, ModelInfo, Plan, Speeds
from tokencli.plan.memory import HOST
from tokencli.plan.sizes import Budgets, ModelFile, draft_places
from tokencli.plan.speed import PROMPT, best_depth, draft_seconds, pass_seconds

# Published pairs of a model and a smaller one of its family: 0.36 to 0.9 (shared field data, D-11, D-14, D-19); the depth that is
# best for each is what the controller settles on, none where none pays.
ACCEPTANCE = (0.4, 0.8)
_USUAL = 0.6
PAYS = 1.1  # expected gain from which `--draft auto` takes it without a measurement
WORTH_TRYING = 1.05  # at the most acceptance


@dataclass(frozen=True, slots=True)
class Partner:
    """`model`: by its header where that is here, else roughly, as the target shrunk to the file's bytes."""

    name: str
    model: ModelFile
    here: bool


@dataclass(frozen=True, slots=True)
class Offer:
    """The draft beside a plan. `device`: where it would go, None: nowhere is room. `bytes`: weights, cache and output there.

    `gain`: how many times as fast it should decode at the least and the most acceptance, and at a usual one; None where unknown.
    `shared_bus`: it would read over the same memory bus as the model.
    """

    name: str
    here: bool
    device: str | None
    bytes: int
    gain: tuple[float, float] | None
    usual_gain: float | None
    shared_bus: bool

    @property
    def pays(self) -> bool:
        """Whether it may be used unmeasured, if the user leaves it to us."""
        return self.device is not None and not self.shared_bus and (self.usual_gain or 0.0) >= PAYS


def offer(
    partner: Partner, plan: Plan, info: ModelInfo, depth: int, machine: Machine, speeds: Speeds | None, budgets: Budgets
) -> Offer:
    """Beside the whole model on its device, if both fit; else on the CPU. `plan`: with its bytes, and no draft yet."""
    whole = plan.device is not None and plan.gpu_layers == plan.model.offloadable_layers and not plan.cpu_moe_layers
    for device in (plan.device, None) if whole else (None,):
        drafted = dataclasses.replace(plan, draft=Draft("model", partner.model.model.file, device, depth, 0.0, adaptive=True))
        places = tuple(draft_places(drafted, partner.model))
        if not budgets.missing(_together(plan, places)):
            break
    else:
        return Offer(partner.name, partner.here, None, sum(place.total for place in places), None, None, False)
    gains = [_gain(each, drafted, info, partner.model.info, machine, speeds) for each in (*ACCEPTANCE, _USUAL)]
    least, most, usual = gains
    return Offer(
        name=partner.name,
        here=partner.here,
        device=device or HOST,
        bytes=sum(place.total for place in places),
        gain=(least, most) if least and most else None,
        usual_gain=usual,
        shared_bus=budgets.shared or (device is None and not whole),
    )


def _together(plan: Plan, places: tuple[DeviceBytes, ...]) -> tuple[DeviceBytes, ...]:
    """Both, the draft with compute buffers as large as the model's own: no dry run is asked for what is only offered."""
    more = {place.id: place for place in places}
    own = [
        dataclasses.replace(place, draft=place.draft + more[place.id].total + place.compute) if place.id in more else place
        for place in plan.devices
    ]
    return (*own, *(place for place in places if place.id not in {each.id for each in plan.devices}))


def _gain(
    acceptance: float, plan: Plan, info: ModelInfo, draft: ModelInfo, machine: Machine, speeds: Speeds | None
) -> float | None:
    if speeds is None or plan.draft is None:
        return None
    depth = min(PROMPT, plan.context)
    guessing = draft_seconds(plan, draft, machine, speeds, depth=depth)
    passes = [pass_seconds(plan, info, machine, speeds, depth=depth, rows=rows) for rows in range(1, plan.draft.max_tokens + 2)]
    known = [each for each in passes if each is not None]
    if guessing is None or len(known) < len(passes):
        return None
    return best_depth(acceptance, guessing, known)[1]


def unpaid(found: Offer) -> str:
    """Why a draft is not used unmeasured."""
    if found.device is None:
        return f"there is no room for the {found.bytes / 2**30:.1f} GiB of {found.name}, and nothing is moved for it"
    if found.shared_bus:
        return (
            f"{found.name} would share the model's memory bus, which often loses: used where `tokencli tune` finds that it pays"
        )
    if found.usual_gain is None:
        return f"nothing is known of the speed of {found.name} here: `tokencli tune` measures it"
    return f"{found.name} on {found.device} is expected to make it {found.usual_gain:.2f} times as fast: name it to try it"

"""How tuned settings come to be used: found by the model's bytes, told in a note, left out where something else is there now."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokencli.app.partner import partner_of
from tokencli.core import Device
from tokencli.plan.choose import Wishes
from tokencli.plan.settings import Tuned
from tokencli.plan.sizes import ModelFile
from tokencli.world import gguf_file, tuned
from tokencli.world.tuned import Entry

if TYPE_CHECKING:
    from tokencli.app.world import World

AGAIN = "tokencli tune measures anew"


@dataclass(frozen=True, slots=True)
class Remembered:
    """The entry of a model, or a line that says why none is used."""

    entry: Entry | None
    why_not: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the engine: set before it is known whether its devices are the same, which only it can tell."""
        return self.entry.environment if self.entry else {}

    def on(self, devices: Sequence[Device]) -> Tuned:
        """What it says for a computer with these devices."""
        if self.entry is None:
            return Tuned(None, {}, self.why_not)
        if stale := self.entry.stale(self.entry.build, self.entry.computer, tuned.stamp(devices)):
            return Tuned(None, {}, not_used(self.entry, stale))
        return Tuned(self.entry.device, self.entry.settings, told(self.entry))


def remembering(target: ModelFile, world: "World") -> "World":
    """The world with what was measured of the model; nothing as long as its quant is not decided."""
    found = None if target.offered else remembered(target, world)
    return dataclasses.replace(world, tuned=found) if found else world


def tuned_for(target: ModelFile, devices: Sequence[Device], world: "World") -> Tuned | None:
    """What was measured of the model on a computer with these devices."""
    found = remembered(target, world)
    return found.on(devices) if found else None


def draft_wanted(target: ModelFile, wishes: Wishes, world: "World") -> str | None:
    """The draft asked for, else the one that was measured to pay; for "auto" else the catalogue's, if it is here: whether it is
    used is for the plan to decide.
    """
    if wishes.draft not in (None, "auto"):
        return wishes.draft
    found = remembered(target, world)
    if found and found.entry and (draft := found.entry.settings.get("draft")):
        return str(draft)
    partner = partner_of(target, world) if wishes.draft == "auto" else None
    return partner.name if partner and partner.here else wishes.draft


def remembered(target: ModelFile, world: "World") -> Remembered | None:
    """None where nothing was measured of the model. A file that cannot be read is a line, never an error."""
    if target.hub and not target.hub.fetched:
        return None
    entries, faults = world.tuned_file.of(identity_of(target)) if world.tuned_file.file.exists() else ([], [])
    if not entries:
        return Remembered(None, faults[0]) if faults else None
    build, computer = tuned.this_build(), this_computer(world)
    stale = [entry.stale(build, computer) for entry in entries]
    for entry, why in zip(entries, stale, strict=True):
        if why is None:
            return Remembered(entry)
    return Remembered(None, not_used(entries[0], str(stale[0])))


def identity_of(target: ModelFile) -> str:
    """Empty where the file cannot be read: then no entry is the model's."""
    try:
        return gguf_file.identity(Path(target.model.file))
    except OSError:
        return ""


def this_computer(world: "World") -> str:
    """The processor, its cores and what feeds it: with less power other settings are fastest (report A1-23)."""
    here = world.read_machine([])
    power = ", on battery" if here.on_ac is False else ""
    return f"{here.cpu or 'an unknown processor'}, {here.cores} core{'s' if here.cores > 1 else ''}{power}"


def told(entry: Entry) -> str:
    """The one note of a run with tuned settings; empty where the plan stayed as it is."""
    values = described({**entry.settings, **entry.environment})
    if not values:
        return ""
    gain = f", {entry.gain[0]:.2f} times as fast then" if entry.gain else ", not confirmed"
    return f"tuned on {entry.date} for {entry.goal} at a context of {entry.context}: {values}{gain}"


def described(values: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def not_used(entry: Entry, why: str) -> str:
    return f"the tuned settings of {entry.date} are not used: {why}; {AGAIN}"

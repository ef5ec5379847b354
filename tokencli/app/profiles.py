"""The stories of `profiles`: all of them, and one with each value explained, as they apply to a machine. Print nothing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencli.app.rough import this_machine
from tokencli.app.world import World
from tokencli.core import Device, Machine, Profile
from tokencli.plan.choose import Wishes, choose_device, choose_profile
from tokencli.world import machine, settings


@dataclass(frozen=True, slots=True)
class Applied:
    """A profile on a machine. `devices`: those of its kind; `used_for`: the one that plans are made for, if with this profile."""

    profile: Profile
    devices: tuple[str, ...]
    used_for: str | None


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a profile, and what the file says of it."""

    name: str
    value: Any
    explanation: str


@dataclass(frozen=True, slots=True)
class Shown:
    """One profile in detail. `traits`: for each quirk the machine's devices that it is about."""

    applied: Applied
    file: Path
    values: tuple[Value, ...]
    traits: Mapping[str, tuple[str, ...]]


def listed(world: World, machine_name: str | None = None) -> list[Applied]:
    """All profiles, the one that is used here first."""
    here = _machine(machine_name, world)
    profiles = settings.read_profiles(world.data)
    found = [_applied(each, profiles, here) for each in profiles]
    return sorted(found, key=lambda each: (each.used_for is None, not each.devices))


def shown(name: str, world: World, machine_name: str | None = None) -> Shown:
    """Raises UsageError for a name that no profile has."""
    profiles = settings.read_profiles(world.data)
    profile = choose_profile(profiles, None, name)
    here = _machine(machine_name, world)
    file = settings.profile_file(world.data, name)
    told = settings.explanations(file.read_text("utf-8"))
    values = tuple(Value(key, getattr(profile, key), told.get(key, "")) for key in settings.VALUES)
    traits = {quirk.match: _devices(here, quirk.match, quirk.backend) for quirk in profile.quirks}
    return Shown(_applied(profile, profiles, here), file, values, traits)


def _applied(profile: Profile, profiles: tuple[Profile, ...], here: Machine) -> Applied:
    device = choose_device(here, Wishes(), [quirk for each in profiles for quirk in each.quirks])
    used = choose_profile(profiles, device, None) == profile
    kinds = [each for each in here.devices if each.kind == profile.kind]
    return Applied(profile, tuple(each.id for each in kinds), (device.id if device else "CPU") if used else None)


def _devices(here: Machine, match: str, backend: str | None) -> tuple[str, ...]:
    def is_meant(device: Device) -> bool:
        return backend in (None, device.backend) and re.search(match, device.description) is not None

    return tuple(each.id for each in here.devices if is_meant(each))


def _machine(name: str | None, world: World) -> Machine:
    return machine.read_snapshot(name, world.data) if name else this_machine(world)

"""How what was measured of this computer comes to be used in predictions, and left out where something else is there now."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokencli.app.remembered import AGAIN, this_computer
from tokencli.core import Device, Speeds
from tokencli.world import settings, tuned
from tokencli.world.calibrated import Calibrated

if TYPE_CHECKING:
    from tokencli.app.world import World

CALIBRATION = "calibration"  # what `tune --forget` calls it


def speeds_here(devices: Sequence[Device], world: "World") -> Speeds:
    """What speeds on this computer are predicted with; a line in it where a calibration no longer holds."""
    priors = settings.read_speeds(world.data)
    found, faults = calibrations(world, tuned.stamp(devices))
    holding = tuple(each.calibration for each, stale in found if stale is None)
    note = faults[0] if faults else ""
    if found and not holding:
        latest, stale = found[-1]
        note = f"the calibration of {latest.date} is not used: {stale}; {AGAIN}"
    return dataclasses.replace(priors, calibrations=holding, note=note)


def calibrations(world: "World", devices: Sequence[str] | None = None) -> tuple[list[tuple[Calibrated, str | None]], list[str]]:
    """All that is remembered, each with why it does not hold here now, and lines for what cannot be read."""
    entries, faults = world.calibrations.entries()
    if not entries:
        return [], faults
    build, computer = tuned.this_build(), this_computer(world)
    return [
        (each, tuned.changed((each.build, each.computer, each.devices), build, computer, devices)) for each in entries
    ], faults

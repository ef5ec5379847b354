"""The story of `models list` and of `run` without a model: what goes on this machine, the best first. Prints nothing."""

import dataclasses
from pathlib import Path

from tokencli.app.models import Line, listed
from tokencli.app.rough import rough_planner, this_machine
from tokencli.app.world import World
from tokencli.core import Machine
from tokencli.errors import DoesNotFit, TokencliError, UsageError
from tokencli.plan.choose import Wishes
from tokencli.plan.model_info import model_info
from tokencli.plan.outlook import Placement, order, outlook
from tokencli.plan.sizes import ModelFile
from tokencli.plan.why import KINDS
from tokencli.world import gguf_file, machine, settings

BEST = 3


def ranked(world: World, machine_name: str | None = None) -> list[Line]:
    """The models that can be run, the best for the machine first; of what is not downloaded by its size alone."""
    here = machine.read_snapshot(machine_name, world.data) if machine_name else this_machine(world)
    found = [_with_outlook(line, here, world) for line in listed(world)]
    return [line for _, line in sorted(found, key=lambda each: each[0], reverse=True)]


def no_model(world: World) -> UsageError:
    """What to say where a model is needed and none is named."""
    best = [line for line in ranked(world) if line.fits][:BEST]
    named = ", ".join(f"{line.name} ({line.for_what or line.title or line.quant})" for line in best)
    return UsageError("no MODEL is named", f"the best for this machine: {named}; all: tokencli models list")


def _with_outlook(line: Line, here: Machine, world: World) -> tuple[tuple[float, ...], Line]:
    planned = _planned(line, here, world) if line.here and line.file else None
    if planned:
        return planned
    if line.bytes is None:
        return (0.5,), line
    profiles, speeds = settings.read_profiles(world.data), settings.read_speeds(world.data)
    found = outlook(line.bytes, line.active_share or 1.0, here, profiles, speeds)
    return found.order, _told(line, found.placement, found.decode)


def _told(line: Line, placement: Placement, decode: float | None) -> Line:
    return dataclasses.replace(
        line,
        placement=placement,
        fits=placement != "no",
        decode_tokens_per_second=decode,
        speed_origin="predicted" if decode else None,
    )


def _planned(line: Line, here: Machine, world: World) -> tuple[tuple[float, ...], Line] | None:
    """By its plan, where the header is at hand."""
    assert line.file
    assert line.bytes is not None
    try:
        target = ModelFile.of(model_info(gguf_file.read_header(Path(line.file))), line.file, line.name)
        plan = rough_planner(target, here, world).plan(Wishes())
    except DoesNotFit:
        return order(line.bytes, "no", None), _told(line, "no", None)
    except TokencliError:
        return None
    placement: Placement = "whole" if plan.device is None or KINDS["whole"](plan) else "split"
    decode = plan.predicted.decode_tokens_per_second
    return order(line.bytes, placement, decode), _told(line, placement, decode)

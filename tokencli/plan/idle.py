"""What would become of a plan if the programs that hold the most memory were closed, told where that is something. Pure."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokencli.core import Finding, Holder, Machine, Plan, Profile, Speeds
from tokencli.errors import TokencliError
from tokencli.plan.choose import Wishes
from tokencli.plan.loss import CACHES, loss
from tokencli.plan.outlook import outlook
from tokencli.plan.planner import Planner
from tokencli.plan.remarks import READ_AGAIN, gib

_LEAST = 256 << 20  # nobody closes a program for less
_MOST = 3
_PLACES = ("no", "split", "whole")


def if_closed(plan: Plan, planner: Planner, wishes: Wishes, holders: Iterable[Holder]) -> str | None:
    """What the same wishes would get then; None where that is no more than `plan`."""
    named = _worth_closing(planner.machine, holders)
    then = _plan(planner, wishes, named) if named else None
    gains = ", ".join(_gains(plan, then)) if then else ""
    return f"if {_names(named)} were closed: {gains}" if gains else None


def fits_if_closed(planner: Planner, wishes: Wishes, holders: Iterable[Holder]) -> str | None:
    """That a model which does not fit would fit then."""
    named = _worth_closing(planner.machine, holders)
    return f"closing {_names(named)} would make it fit" if named and _plan(planner, wishes, named) else None


def more_if_closed(
    sizes: Mapping[str, tuple[int, float]],
    machine: Machine,
    profiles: Sequence[Profile],
    speeds: Speeds,
    holders: Iterable[Holder],
) -> Iterator[Finding]:
    """Which models would go then that do not go now. `sizes`: bytes by name, and the share of them that a token reads."""
    named = _worth_closing(machine, holders)
    idle = _without(machine, named)

    def place(name: str, here: Machine) -> int:
        return _PLACES.index(outlook(*sizes[name], here, profiles, speeds).placement)

    gained = [name for name in sizes if place(name, idle) > place(name, machine)] if named else []
    if gained:
        hint = "close them before a model of that size is run"
        yield Finding("warn", f"{_names(named)} hold RAM that {', '.join(gained)} would need to fit", hint)


def _worth_closing(machine: Machine, holders: Iterable[Holder]) -> list[Holder]:
    """The largest few. None inside a limit of a control group: who is in the same group is not known."""
    large = sorted((each for each in holders if each.bytes >= _LEAST), key=lambda each: -each.bytes)
    return large[:_MOST] if machine.ram_limit_bytes is None else []


def _without(machine: Machine, holders: Iterable[Holder]) -> Machine:
    available = machine.ram_available_bytes + sum(each.bytes for each in holders)
    return dataclasses.replace(machine, ram_available_bytes=min(available, machine.ram_total_bytes))


def _plan(planner: Planner, wishes: Wishes, holders: Iterable[Holder]) -> Plan | None:
    idle = dataclasses.replace(planner, machine=_without(planner.machine, holders))
    try:
        return dataclasses.replace(idle, target=idle.choose(wishes)).plan(wishes)
    except TokencliError:  # an aside is no reason to fail
        return None


def _gains(now: Plan, then: Plan) -> Iterator[str]:
    quant, before = then.model.quant, now.model.quant
    if loss(quant) < loss(before):
        yield f"{quant} instead of {before}"
    elif then.gpu_layers > now.gpu_layers:
        yield f"{then.gpu_layers} layers on {then.device} instead of {now.gpu_layers}"
    elif then.gpu_layers == now.gpu_layers and then.cpu_moe_layers < now.cpu_moe_layers:
        yield f"the experts of {then.cpu_moe_layers} blocks on the CPU instead of {now.cpu_moe_layers}"
    if then.context > now.context:
        yield f"a context of {then.context} instead of {now.context}"
    if CACHES.index(then.kv_type) < CACHES.index(now.kv_type):
        yield f"a KV cache of {then.kv_type} instead of {now.kv_type}"
    if _reads_again(now) and not _reads_again(then):
        yield "nothing read from the disk again"


def _reads_again(plan: Plan) -> bool:
    return any(note.endswith(READ_AGAIN) for note in plan.notes)


def _names(holders: Sequence[Holder]) -> str:
    *first, last = (f"{each.name} ({gib(each.bytes)})" for each in holders)
    return f"{', '.join(first)} and {last}" if first else last

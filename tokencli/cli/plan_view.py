"""A plan as a person sees it at a glance, and as JSON. Renders, decides nothing."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from tokencli.app.plan import Peak
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import placement, plan_json, rounded, size
from tokencli.core import DeviceBytes, Plan
from tokencli.decode.text import EscapeStripper
from tokencli.plan.check import Check
from tokencli.plan.command import server_command
from tokencli.plan.fixes import Fix
from tokencli.plan.partner import ACCEPTANCE, WORTH_TRYING, Offer, unpaid
from tokencli.plan.planner import Decision
from tokencli.plan.speed import PROMPT

BAR = 40
FIXES_SHOWN = 4  # the JSON has all
_TERMS = (("weights", "W"), ("kv", "K"), ("recurrent", "R"), ("compute", "C"), ("output", "O"), ("draft", "D"))
_MIB = 1 << 20


def decision_json(decision: Decision) -> str:
    """`plan --json` of the contract. Speeds are null where the bandwidth of a bus is not known."""
    value = {
        "plan": plan_json(decision.plan),
        "alternatives": [plan_json(plan) for plan in decision.alternatives],
        "rejected": [{"what": each.what, "why": each.why} for each in decision.rejected],
        "fixes": [dataclasses.asdict(fix) for fix in decision.fixes],
        "command": server_command(decision.plan),
        "draft_offer": dataclasses.asdict(decision.offer) if decision.offer else None,
        **({"why": decision.why} if decision.why else {}),
    }
    return json.dumps(value, ensure_ascii=False)


def show_decision(decision: Decision, terminal: Terminal) -> None:
    plan = decision.plan
    lines = [
        f"{plan.model.name}  {plan.model.architecture} {plan.model.quant}, {size(plan.model.bytes)}",
        f"profile {plan.profile}, {placement(plan)}, {plan.threads} threads",
        f"context {plan.context} ({_origin(plan, 'context')}), KV {plan.kv_type}, ubatch {plan.ubatch}, draft {_draft(plan)}",
        *speed_lines(plan),
        "",
        *(line for place in plan.devices for line in device_lines(place)),
        "  W weights, K KV cache, R recurrent state, C compute buffers, O output, D draft, . free",
        "",
        *(f"note: {note}" for note in plan.notes),
        *(f"not taken: {each.what}: {each.why}" for each in decision.rejected),
        *([f"why: {decision.why}"] if decision.why else []),
        *(f"instead: {_other(plan, other)}" for other in decision.alternatives),
        *([offer_line(decision.offer, plan)] if decision.offer else []),
        *fix_lines(decision.fixes[:FIXES_SHOWN]),
        f"as llama.cpp's server: {server_command(plan)}",
    ]
    _print(lines, terminal)


def speed_lines(plan: Plan) -> list[str]:
    """What is expected of the plan's speed and how it is known; nothing where nothing is."""
    speed = plan.predicted
    parts = [
        f"decode about {rounded(speed.decode_tokens_per_second)} tokens/s" if speed.decode_tokens_per_second else "",
        f"prefill {rounded(speed.prefill_tokens_per_second)} tokens/s" if speed.prefill_tokens_per_second else "",
        f"TTFT for {min(PROMPT, plan.context)} tokens {rounded(speed.ttft_seconds)} s" if speed.ttft_seconds else "",
    ]
    told = ", ".join(part for part in parts if part)
    return [f"{speed.origin}: {told}" + (" (without the draft)" if plan.draft else "")] if told else []


def device_lines(place: DeviceBytes) -> list[str]:
    """A device's bar and its terms in MiB."""
    room = max(place.budget or 0, place.total, 1)
    bar = "".join(letter * round(BAR * getattr(place, term) / room) for term, letter in _TERMS)[:BAR]
    budget = f" of {size(place.budget)} that may be used" if place.budget is not None else ""
    terms = ", ".join(f"{term} {size(getattr(place, term))}" for term, _ in _TERMS if getattr(place, term))
    return [f"{place.id:>8} [{bar:.<{BAR}}] {size(place.total)}{budget}", f"{'':>8}  {terms}"]


def show_checks(checks: Iterable[Check], peak: Peak | None, terminal: Terminal) -> None:
    lines = [f"{'device':>8}  {'term':<10} {'predicted':>12} {'llama.cpp':>12} {'difference':>12}"]
    for each in checks:
        ours, theirs = each.predicted / _MIB, each.actual / _MIB
        lines.append(f"{each.device:>8}  {each.term:<10} {ours:8.2f} MiB {theirs:8.2f} MiB {ours - theirs:+8.2f} MiB")
    if peak:
        lines.append(f"peak of the engine's process after a prompt longer than ubatch: {size(peak.host)}")
        lines += [f"free memory of {device} fell by {size(fallen)}" for device, fallen in peak.devices.items()]
    _print(lines, terminal)


def checks_json(plan: Plan, checks: Iterable[Check], peak: Peak | None) -> str:
    rows = [{"device": each.device, "term": each.term, "predicted": each.predicted, "actual": each.actual} for each in checks]
    value = {"plan": plan_json(plan), "check": rows, "peak": dataclasses.asdict(peak) if peak else None}
    return json.dumps(value, ensure_ascii=False)


def _print(lines: list[str], terminal: Terminal) -> None:
    for line in lines:
        terminal.stdout.write(EscapeStripper().feed(line) + "\n")  # file names may hold anything
    terminal.stdout.flush()


def _origin(plan: Plan, setting: str) -> Any:
    return plan.origins.get(setting, "decided")


def _draft(plan: Plan) -> str:
    if plan.draft is None:
        return "off"
    return f"{plan.draft.kind}, {plan.draft.max_tokens} tokens" + (f" on {plan.draft.device}" if plan.draft.device else "")


def _decode(plan: Plan) -> str:
    speed = plan.predicted.decode_tokens_per_second
    return f", {plan.predicted.origin} decode about {rounded(speed)} tokens/s" if speed else ""


def _other(plan: Plan, other: Plan) -> str:
    quant = f"{other.model.quant}, " if other.model.quant != plan.model.quant else ""
    less = "".join(
        f", {name} {getattr(other, field)}"
        for field, name in (("context", "context"), ("kv_type", "KV"), ("ubatch", "ubatch"))
        if getattr(other, field) != getattr(plan, field)
    )
    return f"{quant}{placement(other)}{less}, {_total(other)}{_decode(other)}"


def offer_line(found: Offer, plan: Plan) -> str:
    """The catalogue's draft: what it would take, what it should bring, and how to have it."""
    if found.device is None:
        return f"draft: {unpaid(found)}"
    where = f"draft: {found.name} on {found.device}, +{size(found.bytes)}"
    if found.gain is None:
        gain = "what it brings cannot be predicted here"
    elif found.gain[1] < WORTH_TRYING:
        return f"{where}, would not be faster (predicted)"
    else:
        least, most = (f"{each:.1f}" for each in found.gain)
        gain = f"decode {least} to {most} times as fast (predicted, for {ACCEPTANCE[0]:.0%} to {ACCEPTANCE[1]:.0%} accepted)"
    pull = "" if found.here else f"tokencli models pull {found.name}, then "
    if found.shared_bus:
        how = f"on one memory bus pairs often lose, so {pull}tokencli tune {plan.model.name} --draft {found.name} to see"
    else:
        how = f"{pull}--draft {found.name}"
    return f"{where}, {gain}: {how}"


def fix_lines(fixes: Sequence[Fix]) -> list[str]:
    """What would save memory as a table: the change, the bytes, and what it does to either speed, where that is known."""
    rows = [(fix.change, f"-{size(fix.bytes)}", fix.device or "", _speeds(fix)) for fix in fixes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width).rstrip() for row in rows]
    return [f"saves: {line}" for line in lines]


def _speeds(fix: Fix) -> str:
    told = (("decode", fix.decode_factor), ("prefill", fix.prefill_factor))
    return ", ".join(f"{name} {_change(factor)}" for name, factor in told if factor is not None)


def _change(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %" if abs(factor - 1) >= 0.005 else "same"


def _total(plan: Plan) -> str:
    return size(sum(place.total for place in plan.devices))

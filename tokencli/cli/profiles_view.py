"""Profiles as a table, one of them with its reasons, and both as JSON. Renders, decides nothing."""

import dataclasses
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from tokencli.app.profiles import Applied, Shown
from tokencli.core import Quirk

_WIDTH = 100
_COLUMNS = ("PROFILE", "KIND", "HERE", "FOR")


def list_text(found: Sequence[Applied]) -> str:
    rows = [_COLUMNS, *((each.profile.name, each.profile.kind, _here(each), each.profile.title) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in lines)


def list_json(found: Sequence[Applied]) -> str:
    return json.dumps({"profiles": [_applied(each) for each in found]}, ensure_ascii=False) + "\n"


def show_text(found: Shown) -> str:
    applied = found.applied
    lines = [f"{applied.profile.name}: {applied.profile.title}", f"file  {found.file}", f"here  {_told(applied)}", ""]
    for value in found.values:
        lines += [f"{value.name} = {json.dumps(value.value)}", *_wrapped(value.explanation)]
    for quirk in applied.profile.quirks:
        lines += _quirk_lines(quirk, found.traits[quirk.match])
    lines += [
        "",
        "A flag goes before these values, and so does what `tokencli tune` found for a model; `tokencli plan MODEL --json`",
    ]
    lines += ["says in plan.origins where each value of a plan came from."]
    return "".join(f"{line}\n" for line in lines)


def show_json(found: Shown) -> str:
    described: dict[str, Any] = {
        **_applied(found.applied),
        "file": str(found.file),
        "values": {
            each.name: {"value": each.value, "explanation": each.explanation, "origin": "profile"} for each in found.values
        },
        "quirks": [
            {**dataclasses.asdict(each), "devices": list(found.traits[each.match])} for each in found.applied.profile.quirks
        ],
    }
    return json.dumps(described, ensure_ascii=False) + "\n"


def _applied(each: Applied) -> dict[str, Any]:
    profile = each.profile
    return {
        "name": profile.name,
        "title": profile.title,
        "kind": profile.kind,
        "devices": list(each.devices),
        "used_for": each.used_for,
    }


def _here(each: Applied) -> str:
    if each.used_for:
        return f"used for {each.used_for}"
    return f"with --device {each.devices[0]}" if each.devices else "no such device"


def _told(applied: Applied) -> str:
    if applied.used_for:
        return f"used, as plans are made for {applied.used_for}"
    if applied.devices:
        return f"not used: plans are made for another device; with --device {applied.devices[0]} it is"
    return "not used: there is no device of this kind; --profile takes it nevertheless"


def _quirk_lines(quirk: Quirk, devices: Sequence[str]) -> Iterator[str]:
    whose = ", ".join(devices) if devices else "no device here"
    yield f"quirk of {quirk.match}: {whose}"
    yield from _wrapped(f"{quirk.what} ({quirk.source})")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")

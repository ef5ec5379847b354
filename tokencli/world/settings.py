"""Reads profiles and speeds: TOML files that people read and edit. Knows their form; what they are for is decided in plan/."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from tokencli.core import LoadMode, Profile, Quirk, Rates, Speeds
from tokencli.errors import UsageError


def read_profiles(folder: Path) -> tuple[Profile, ...]:
    """All profiles/*.toml under the data folder, by name. Raises UsageError for one that cannot be used."""
    return tuple(parse_profile(file.stem, file.read_text("utf-8")) for file in sorted((folder / "profiles").glob("*.toml")))


def profile_file(folder: Path, name: str) -> Path:
    """Where the profile of this name is."""
    return folder / "profiles" / f"{name}.toml"


def explanations(text: str) -> dict[str, str]:
    """What a profile's text says of each value: the lines of comment above it, or above the values that it follows at once."""
    found, above, named = {}, list[str](), False
    for line in text.splitlines():
        if line.startswith("#"):
            above, named = [*([] if named else above), line.lstrip("# ").strip()], False
        elif key := re.match(r"(\w+) *=", line):
            found[key[1]], named = " ".join(above), True
        else:
            above = []
    return found


def parse_profile(name: str, text: str) -> Profile:
    """A profile from its file's text: every value given, none unknown, each possible."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the profile {name} is not TOML: {error}", _HINT) from None
    quirks = _quirks(name, values.pop("quirks", []))
    wanted = {field.name for field in fields(Profile)} - {"name", "quirks"}
    if wrong := sorted(set(values) ^ wanted):
        what = "does not know" if wrong[0] in values else "lacks"
        raise UsageError(f"the profile {name} {what} {wrong[0]!r}", _HINT)
    for key, is_good in _CHECKS.items():
        if not is_good(values[key]):
            raise UsageError(f"the profile {name} has {key} = {values[key]!r}", _HINT)
    return Profile(name=name, **values, quirks=quirks)


def _quirks(profile: str, tables: list[dict[str, Any]]) -> tuple[Quirk, ...]:
    """The [[quirks]] tables. Raises UsageError."""
    try:
        quirks = tuple(Quirk(**values) for values in tables)
        for quirk in quirks:
            re.compile(quirk.match)
            if quirk.load_mode not in get_args(LoadMode):
                raise ValueError(f"load_mode = {quirk.load_mode!r}")
    except (TypeError, ValueError, re.error) as error:
        raise UsageError(f"the profile {profile} has a quirk that cannot be used: {error}", _HINT) from None
    return quirks


_HINT = "compare it with the files in profiles/"


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "title": lambda value: isinstance(value, str),
    "kind": lambda value: value in ("cpu", "integrated", "gpu"),
    "headroom_share": lambda value: isinstance(value, float) and 0 <= value < 1,
    "context": _count,
    "context_least": _count,
    "batch": _count,
    "ubatch": _count,
    "kv_type": lambda value: value in ("f16", "q8_0", "q4_0"),
    "flash_attention": lambda value: value in ("auto", "on", "off"),
    "draft": lambda value: value in ("off", "ngram"),
    "draft_tokens": lambda value: _count(value) and value <= 64,
}


VALUES = tuple(key for key in _CHECKS if key not in ("title", "kind"))  # of a profile, in the order of its file


def read_speeds(folder: Path) -> Speeds:
    """What predictions of speed are made with: profiles/speeds/priors.toml under the data folder. Raises UsageError."""
    return parse_speeds((folder / "profiles" / "speeds" / "priors.toml").read_text("utf-8"))


def parse_speeds(text: str) -> Speeds:
    """Rates by backend and kind of device, all positive. Raises UsageError."""
    try:
        values = tomllib.loads(text)
        half_rows = float(values.pop("half_rows"))
        rates = {f"{backend}.{kind}": Rates(**each) for backend, kinds in values.items() for kind, each in kinds.items()}
        numbers = [half_rows, *(number for each in rates.values() for number in _numbers(each))]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the speeds cannot be used: {error}", "compare them with profiles/speeds/priors.toml") from None
    if not all(number > 0 for number in numbers):
        raise UsageError("the speeds cannot be used: all must be above 0", "compare them with profiles/speeds/priors.toml")
    return Speeds(rates, half_rows)


def _numbers(rates: Rates) -> list[float]:
    own = (rates.bandwidth_share, rates.layer_seconds, rates.prefill_share, *rates.operations_per_weight.values())
    return [float(number) for number in own]

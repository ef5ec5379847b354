"""Remembers what `tune` measured of this computer's speed, in a file of the user's configuration folder. Knows its form only.

An entry holds for one device with so many threads, on one computer with one build and its devices, and for any model.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencli.core import Calibration
from tokencli.entries import keep_beside, write_entries
from tokencli.header import TENSOR_TYPES

HEADER = "Written by `tokencli tune`, bytes and seconds. `tokencli tune --forget calibration` takes all of it out."
_TYPES = {name for name, _, _ in TENSOR_TYPES.values()}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """`devices`: all that llama.cpp listed then. `error`: how far the constants were from the run they met least, relative."""

    build: str
    computer: str
    devices: tuple[str, ...]
    date: str
    calibration: Calibration
    error: float | None = None

    def key(self) -> tuple[str, str, tuple[str, ...], str, int | None]:
        return self.build, self.computer, self.devices, self.calibration.device, self.calibration.threads


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """All entries, in one TOML file; written whole and then renamed."""

    file: Path

    def entries(self) -> tuple[list[Calibrated], list[str]]:
        """What can be used, and a line for what cannot."""
        try:
            found = tomllib.loads(self.file.read_text("utf-8")).get("calibrated", [])
            return [parse_calibrated(values) for values in found], []
        except FileNotFoundError:
            return [], []
        except (OSError, TypeError, ValueError, KeyError, AttributeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            return [], [f"the calibration is not used: {self.file} cannot be read: {why}"]

    def put(self, new: Sequence[Calibrated]) -> None:
        """In the place of older ones for the same. A file that could not be read is kept beside. Raises OSError."""
        entries, faults = self.entries()
        keep_beside(self.file, faults)
        keys = {each.key() for each in new}
        self._write([*(each for each in entries if each.key() not in keys), *new])

    def forget(self) -> int:
        """Take all out; how many there were. Raises OSError."""
        entries, _ = self.entries()
        self.file.unlink(missing_ok=True)
        return len(entries)

    def _write(self, entries: Sequence[Calibrated]) -> None:
        write_entries(self.file, HEADER, "calibrated", map(_table, entries))


def _table(entry: Calibrated) -> dict[str, Any]:
    known = entry.calibration
    values = {
        "build": entry.build,
        "computer": entry.computer,
        "devices": list(entry.devices),
        "date": entry.date,
        "device": known.device,
        "threads": known.threads,
        "error": entry.error,
        "layer_seconds": known.layer_seconds,
        "cache": known.cache,
        "decode": {name: round(speed) for name, speed in known.decode.items()},
        "prefill": {name: round(speed) for name, speed in known.prefill.items()},
    }
    return {name: value for name, value in values.items() if value is not None}


def parse_calibrated(values: Mapping[str, Any]) -> Calibrated:
    """An entry from its table, every value checked. Raises ValueError, TypeError, KeyError."""
    threads = values.get("threads")
    if threads is not None and not (isinstance(threads, int) and 1 <= threads <= 1024):
        raise ValueError(f"threads = {threads!r}")
    texts = {name: values[name] for name in ("build", "computer", "date", "device")}
    if wrong := [name for name, value in texts.items() if not isinstance(value, str)]:
        raise ValueError(f"{wrong[0]} = {texts[wrong[0]]!r} is no text")
    calibration = Calibration(
        device=texts["device"],
        threads=threads,
        decode=_speeds(values["decode"]),
        layer_seconds=_positive("layer_seconds", values["layer_seconds"]),
        cache=_positive("cache", values["cache"]) if "cache" in values else None,
        prefill=_speeds(values.get("prefill", {})),
    )
    if not calibration.decode:
        raise ValueError("an entry without a speed")
    error = _positive("error", values["error"] or 1e-9) if "error" in values else None
    devices = tuple(str(each) for each in values["devices"])
    return Calibrated(texts["build"], texts["computer"], devices, texts["date"], calibration, error)


def _speeds(values: Mapping[str, Any]) -> dict[str, float]:
    if unknown := set(values) - _TYPES:
        raise ValueError(f"{min(unknown)!r} is no tensor type")
    return {name: _positive(name, value) for name, value in values.items()}


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} = {value!r}")
    return float(value)

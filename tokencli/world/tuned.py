"""Remembers the fastest settings that were measured, in a file of the user's configuration folder that people can read and edit.

An entry holds for one model's bytes, on one computer with one build and its devices: what was measured with others is stale.
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from tokencli.core import Device, LoadMode
from tokencli.entries import keep_beside, read_entries, write_entries

HEADER = "Written by `tokencli tune`. `tokencli tune --forget MODEL` takes an entry out, and so does deleting it here."
# What a worker's environment may be given; anything else in the file makes its entry unusable.
ENVIRONMENT = ("OMP_WAIT_POLICY", "GGML_VK_DISABLE_COOPMAT", "GGML_VK_DISABLE_COOPMAT2", "GGML_VK_PREFER_HOST_MEMORY")


def _count(most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "threads": _count(1024),
    "batch_threads": _count(1024),
    "gpu_layers": _count(10_000),
    "cpu_moe": _count(10_000),
    "ubatch": _count(1 << 16),
    "flash_attention": lambda value: value in ("auto", "on", "off"),
    "kv_type": lambda value: value in ("f16", "q8_0", "q4_0"),
    "extra_buffers": lambda value: isinstance(value, bool),
    "load_mode": lambda value: value in get_args(LoadMode),
    "draft": lambda value: isinstance(value, str) and bool(value),
    "draft_tokens": _count(64),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model's result. `devices`: all that llama.cpp listed, as `stamp` writes them; `settings`: what differs from the plan.

    `gain`: median, low and high of how many times as fast it was than the plan alone; None where nothing was told apart.
    """

    model: str
    identity: str
    build: str
    computer: str
    devices: tuple[str, ...]
    device: str
    date: str
    goal: str
    context: int
    confirmed: bool
    gain: tuple[float, float, float] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def key(self) -> tuple[str, str, str, tuple[str, ...]]:
        return self.identity, self.build, self.computer, self.devices

    def stale(self, build: str, computer: str, devices: Sequence[str] | None = None) -> str | None:
        """What is another thing now, None where it still holds; without `devices` as far as is known before they are listed."""
        return changed((self.build, self.computer, self.devices), build, computer, devices)


@dataclass(frozen=True, slots=True)
class TunedFile:
    """All entries, in one TOML file; written whole and then renamed."""

    file: Path

    def entries(self) -> tuple[list[Entry], list[str]]:
        """What can be used, and a line for what cannot."""
        return read_entries(self.file, "tuned", parse_entry, "tuned settings")

    def of(self, identity: str) -> tuple[list[Entry], list[str]]:
        """The entries of a model, the latest first."""
        entries, faults = self.entries()
        return [each for each in reversed(entries) if each.identity == identity], faults

    def put(self, entry: Entry) -> None:
        """In the place of an older one for the same. A file that could not be read is kept beside. Raises OSError."""
        entries, faults = self.entries()
        keep_beside(self.file, faults)
        self._write([*(each for each in entries if each.key() != entry.key()), entry])

    def forget(self, wanted: Callable[[Entry], bool]) -> int:
        """Take entries out; how many. Raises OSError."""
        entries, _ = self.entries()
        kept = [each for each in entries if not wanted(each)]
        if len(kept) < len(entries):
            self._write(kept)
        return len(entries) - len(kept)

    def _write(self, entries: Sequence[Entry]) -> None:
        write_entries(self.file, HEADER, "tuned", map(_table, entries))


def _table(entry: Entry) -> dict[str, Any]:
    values = {key: value for key, value in dataclasses.asdict(entry).items() if value is not None}
    return {**values, "settings": dict(entry.settings), "environment": dict(entry.environment)}


def parse_entry(values: Mapping[str, Any]) -> Entry:
    """An entry from its table, every value checked: it decides what is run. Raises ValueError, TypeError, KeyError."""
    known = {each.name for each in dataclasses.fields(Entry)}
    if unknown := set(values) - known:
        raise ValueError(f"unknown {min(unknown)!r}")
    settings, environment = dict(values.get("settings", {})), dict(values.get("environment", {}))
    for name, value in settings.items():
        if name not in _CHECKS or not _CHECKS[name](value):
            raise ValueError(f"{name} = {value!r} is no setting")
    for name, value in environment.items():
        if name not in ENVIRONMENT or not isinstance(value, str):
            raise ValueError(f"{name} = {value!r} is none of the variables that are tuned")
    gain = tuple(float(each) for each in values["gain"]) if "gain" in values else None
    if gain is not None and len(gain) != 3:
        raise ValueError("a gain is a median and its interval")
    for name in ("model", "identity", "build", "computer", "device", "date", "goal"):
        if not isinstance(values[name], str):
            raise ValueError(f"{name} = {values[name]!r} is no text")
    return Entry(
        **{
            **values,
            "devices": tuple(str(each) for each in values["devices"]),
            "context": int(values["context"]),
            "confirmed": bool(values["confirmed"]),
            "gain": gain,
            "settings": settings,
            "environment": environment,
        }
    )


def changed(then: tuple[str, str, Sequence[str]], build: str, computer: str, devices: Sequence[str] | None) -> str | None:
    """What is another thing now than it was `then`: build, computer and devices. None where nothing is."""
    old_build, old_computer, old_devices = then
    if old_build != build:
        return f"llama-cpp-python was {old_build} then and is {build} now"
    if old_computer != computer:
        return f"it was measured on {old_computer}, this is {computer}"
    if devices is not None and tuple(devices) != tuple(old_devices):
        return f"the devices were {_listed(old_devices)} then and are {_listed(devices)} now"
    return None


def stamp(devices: Sequence[Device]) -> tuple[str, ...]:
    """The devices as an entry has them; the description of a GPU carries its driver. Without the CPU, which `computer` tells."""
    return tuple(f"{each.id} {each.description}" for each in devices if each.kind != "cpu")


def this_build() -> str:
    """The version of llama-cpp-python, whose llama.cpp was measured."""
    try:
        return importlib.metadata.version("llama_cpp_python")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _listed(devices: Sequence[str]) -> str:
    return " and ".join(devices) or "none"

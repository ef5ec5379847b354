"""Remembers what quants and KV types were measured to lose, in a file of the user's configuration folder that people can read.

An entry holds for one model's bytes with one build of llama.cpp: what was measured with another is stale.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencli.entries import keep_beside, read_entries, write_entries

HEADER = "Written by `tokencli bench MODEL --quality`. Deleting an entry here forgets it."


@dataclass(frozen=True, slots=True)
class Loss:
    """Percent of perplexity that a file lost, `low` to `high` its interval: `kv_type` f16 by its weights, else by that cache.

    `identity` is of the file's bytes; `against`, `text` and `tokens` say how it was measured, `divergence` is the mean in nats.
    """

    model: str
    identity: str
    build: str
    kv_type: str
    percent: float
    low: float
    high: float
    divergence: float
    against: str
    text: str
    tokens: int
    date: str

    def key(self) -> tuple[str, str, str]:
        return self.identity, self.build, self.kv_type


@dataclass(frozen=True, slots=True)
class LossesFile:
    """All entries, in one TOML file; written whole and then renamed."""

    file: Path

    def entries(self) -> tuple[list[Loss], list[str]]:
        """What can be used, and a line for what cannot."""
        return read_entries(self.file, "loss", parse_loss, "measured losses")

    def put(self, entry: Loss) -> None:
        """In the place of an older one for the same. A file that could not be read is kept beside. Raises OSError."""
        entries, faults = self.entries()
        keep_beside(self.file, faults)
        self._write([*(each for each in entries if each.key() != entry.key()), entry])

    def _write(self, entries: Sequence[Loss]) -> None:
        write_entries(self.file, HEADER, "loss", map(dataclasses.asdict, entries))


def parse_loss(values: Mapping[str, Any]) -> Loss:
    """An entry from its table, every value checked: it decides what is run. Raises ValueError, TypeError."""
    for each in dataclasses.fields(Loss):
        value = values.get(each.name)
        right = (str,) if each.type is str else (int,) if each.type is int else (int, float)
        if not isinstance(value, right) or isinstance(value, bool):
            raise ValueError(f"{each.name} = {value!r} is not what it should be")
    found = Loss(**values)
    if found.kv_type not in ("f16", "q8_0", "q4_0"):
        raise ValueError(f"kv_type = {found.kv_type!r} is none")
    if not -100 < found.low <= found.percent <= found.high < float("inf"):
        raise ValueError(f"{found.percent!r} is no loss in percent with its interval")
    return found

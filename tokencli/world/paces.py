"""Remembers on disk what speculation learned of a pair of models, for the next run. Knows files, not what a pace holds."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST = 64  # pairs; the longest unused one goes first


@dataclass(frozen=True, slots=True)
class Paces:
    """Paces by key, in one small file of the user's cache folder. A file that cannot be read or written costs a new start."""

    file: Path

    def find(self, key: str) -> Mapping[str, Any] | None:
        found = self._read().get(key)
        return found if isinstance(found, dict) else None

    def keep(self, key: str, pace: Mapping[str, Any]) -> None:
        """Written whole and then renamed: of two at once the later one stays."""
        others = {each: known for each, known in self._read().items() if each != key}
        newest = dict(list(others.items())[-(MOST - 1) :])
        part = self.file.with_suffix(f".{os.getpid()}.part")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({**newest, key: pace}), "utf-8")
            part.replace(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

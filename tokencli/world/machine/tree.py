"""The system's small text files below a root folder. What is there and cannot be read is kept, with the reason."""

import os
from collections.abc import Iterator
from pathlib import Path


class Tree:
    """Reads /proc, /sys and the like. None is "not there"; `failed` says what was there and told nothing."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.failed: list[str] = []

    def text(self, path: str) -> str | None:
        try:
            return (self.root / path).read_text("utf-8", "replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.failed.append(f"/{path}: {error.strerror}")
            return None

    def number(self, path: str) -> int | None:
        """A whole number, decimal or as 0x."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text, 0)
        except ValueError:
            self.failed.append(f"/{path}: {text[:40]!r} is no number")
            return None

    def names(self, path: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is none."""
        try:
            return sorted(each.name for each in (self.root / path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.failed.append(f"/{path}: {error.strerror}")
            return []

    def target(self, path: str) -> str | None:
        """The last part of what a link points to."""
        try:
            return (self.root / path).readlink().name
        except OSError:
            return None

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def usable(self, path: str) -> bool:
        """Whether this user may read and write the file."""
        return os.access(self.root / path, os.R_OK | os.W_OK)


def cpu_list(text: str | None) -> frozenset[int]:
    """The kernel's list of numbers: "0-3,8"."""
    return frozenset(_numbers(text or ""))


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.strip().isdecimal():
            yield from range(int(first), int(last or first) + 1)

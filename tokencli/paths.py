"""Paths as people type them, and what tells a file from its later self. Reads no file."""

import os
from pathlib import Path

from tokencli.errors import UsageError


def typed(text: str) -> Path:
    """`~` and `~user` are made folders, as a shell does: left as they are where there is no such user.

    Raises UsageError for what no system takes as a path.
    """
    if "\0" in text:
        raise UsageError(f"{text!r} is no path", "leave the NUL character out")
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises RuntimeError for a user who is not there


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Size and modification time: a file whose stamp is the same is taken to be the same. None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns

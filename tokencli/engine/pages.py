"""The pages of model files that the system keeps in RAM. Knows no model: a page that someone has mapped stays."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tokencli.listing import part_of


def give_back(file: Path) -> None:
    """Have the system drop what it keeps of a model's files, in all parts; nothing where it cannot be asked to."""
    if not hasattr(os, "posix_fadvise"):
        return
    for part in _parts(file):
        with contextlib.suppress(OSError):
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _parts(file: Path) -> Iterator[Path]:
    number, count, _ = part_of(file.name)
    yield file
    for other in range(number + 1, count + 1):
        yield file.with_name(file.name.replace(f"-{number:05d}-of-", f"-{other:05d}-of-"))

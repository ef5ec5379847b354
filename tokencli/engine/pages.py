"""The pages of model files that the system keeps in RAM. Knows no model: a page that someone has mapped stays."""

import contextlib
import os
from pathlib import Path

from tokencli.listing import parts_of


def give_back(file: Path) -> None:
    """Have the system drop what it keeps of a model's files, in all parts; nothing where it cannot be asked to."""
    if not hasattr(os, "posix_fadvise"):
        return
    for part in map(file.with_name, parts_of(file.name)):
        with contextlib.suppress(OSError):
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

"""Locks between processes, which the system releases when their holder dies. Knows files; not what they guard."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock(file: Path, wait: bool = True) -> int:
    """A file descriptor that holds the file's lock until it is closed, by the system if need be.

    Raises BlockingIOError where another holds it and `wait` is false, OSError where the file cannot be had.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)  # of a file: network file systems lock no folders
    try:
        if sys.platform == "win32":  # untested: there nothing is locked
            return descriptor
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(file: Path) -> Iterator[None]:
    descriptor = lock(file)
    try:
        yield
    finally:
        os.close(descriptor)

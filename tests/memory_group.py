"""A memory control group of a test's own, v1 or v2, where this user may make one; elsewhere a skip that tells why."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_TOP = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """The folder of a group that may use `limit` bytes and no swap; whoever is in it at the end is killed."""
    try:
        folder = _made(limit)
    except OSError as error:
        pytest.skip(f"NOT TESTED: no memory control group can be made here: {error}")
    try:
        yield folder
    finally:
        _removed(folder)


def join(folder: Path) -> None:
    """Put the calling process into the group."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def _made(limit: int) -> Path:
    version1 = (_TOP / "memory/memory.limit_in_bytes").exists()
    folder = _own(version1) / f"tokencli-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if version1 else "memory.max")).write_text(str(limit))
        with contextlib.suppress(OSError):  # a kernel without accounting of swap
            (folder / ("memory.memsw.limit_in_bytes" if version1 else "memory.swap.max")).write_text(str(limit * version1))
    except OSError:
        folder.rmdir()
        raise
    return folder


def _own(version1: bool) -> Path:
    """The group of this process, which a new one has to be below."""
    top = _TOP / "memory" if version1 else _TOP
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("memory" in controllers.split(",") if version1 else controllers == "") and (top / path.lstrip("/")).is_dir():
            return top / path.lstrip("/")
    return top


def _removed(folder: Path) -> None:
    for _ in range(100):
        for number in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} is still in use")

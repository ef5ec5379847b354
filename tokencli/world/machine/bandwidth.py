"""The memory's bandwidth: a copy by all cores, the best of all measurements kept. Never measured where nobody asked."""

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tokencli.core import Machine

_ARRAY_BYTES = 48 << 20  # per thread: more than its part of any cache
_SECONDS = 0.4


def remembered_bandwidth(machine: Machine, cache: Path) -> int | None:
    """Bytes per second as measured here before, None where it was not."""
    try:
        found = json.loads((cache / "bandwidth.json").read_text("utf-8"))
        value = found.get(_key(machine))
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, int) and value > 0 else None


def measured_bandwidth(
    machine: Machine, cache: Path, seconds: float = _SECONDS, measure: Callable[[int, float], int] | None = None
) -> int | None:
    """The most that was ever measured here, once more now: whatever else runs only takes away from it. Where the memory has no
    room to measure, what is remembered.
    """
    known = remembered_bandwidth(machine, cache)
    if machine.ram_available_bytes < 4 * machine.threads * _ARRAY_BYTES:
        return known
    found = max((measure or copy_bandwidth)(machine.threads, seconds), known or 0)
    if found != known:
        _keep({_key(machine): found}, cache / "bandwidth.json")
    return found


def copy_bandwidth(threads: int, seconds: float, array_bytes: int = _ARRAY_BYTES) -> int:
    """Bytes per second that `threads` threads read and write together while each copies an array of its own."""
    import numpy as np

    begin, copied = threading.Barrier(threads + 1), [0] * threads
    end = [math.inf]

    def work(index: int) -> None:
        source, target = np.ones(array_bytes, np.uint8), np.zeros(array_bytes, np.uint8)
        begin.wait()
        while time.perf_counter() < end[0]:
            np.copyto(target, source)  # numpy gives the interpreter's lock away for it
            copied[index] += 1

    workers = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    start = time.perf_counter()
    end[0] = start + seconds
    for worker in workers:
        worker.join()
    return round(2 * array_bytes * sum(copied) / (time.perf_counter() - start))


def _key(machine: Machine) -> str:
    return f"{machine.cpu} {machine.threads} threads {machine.ram_total_bytes >> 30} GiB"


def _keep(values: dict[str, int], file: Path) -> None:
    part = file.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(values), "utf-8")
        part.replace(file)

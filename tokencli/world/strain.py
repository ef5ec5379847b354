"""What else the computer does at the moment, looked at where an answer was slow: busy programs by name, what was swapped out."""

import contextlib
import os
import time
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

from tokencli.core import Strain

_SECONDS = 0.3  # the system counts in hundredths of a second
Times = Mapping[int, tuple[str, float]]  # processor seconds of each process, by its number, with its name


def read_strain(worker: int, wait: Callable[[float], None] = time.sleep, root: Path = Path("/")) -> Strain:
    """Takes a moment. This process and `worker`, the engine's, are not among the programs."""
    own, begun, before = (os.getpid(), worker), time.monotonic(), read_times()
    wait(_SECONDS)
    after, seconds = read_times(), time.monotonic() - begun
    return Strain(busy_programs(before, after, seconds, own) if seconds else (), swapped_bytes(worker, root))


def busy_programs(before: Times, after: Times, seconds: float, own: Container[int] = ()) -> tuple[tuple[str, float], ...]:
    """Cores that programs of a name kept busy together, the busiest first; what ended meanwhile is not seen."""
    spent: dict[str, float] = {}
    for number, (name, now) in after.items():
        earlier_name, earlier = before.get(number, (name, 0.0))
        if number not in own and earlier_name == name:
            spent[name] = spent.get(name, 0.0) + max(now - earlier, 0.0) / seconds
    return tuple(sorted(spent.items(), key=lambda each: -each[1]))


def swapped_bytes(process: int, root: Path = Path("/")) -> int | None:
    """How much of a process lies in the swap; None where the system does not tell (only Linux does)."""
    try:
        lines: Iterable[str] = (root / f"proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmSwap:")), None)


def read_times() -> Times:
    import psutil

    found: dict[int, tuple[str, float]] = {}
    with contextlib.suppress(OSError, psutil.Error):
        for process in psutil.process_iter(["pid", "name", "cpu_times"]):
            seen = process.info
            if seen["cpu_times"] and seen["name"]:
                name = "".join(each for each in seen["name"] if each.isprintable())
                found[seen["pid"]] = name, seen["cpu_times"].user + seen["cpu_times"].system
    return found

"""How busy the processor is with other programs, seen over the moments that the engine takes to start anyway.

Two programs on one core make a thread wait for its turn, and all threads of llama.cpp wait for the slowest at every operation:
measured here with one other program on 2 cores, 2 threads decoded 5 tokens/s where 1 thread decoded 99.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHORTEST_SECONDS = 0.1  # the system counts in hundredths of a second


@dataclass(frozen=True, slots=True)
class Busy:
    """Processor seconds since some start: of all programs that are not meant to give way (nice), and our own part of them."""

    at: float
    all: float
    own: float


def read_busy(worker: int) -> Busy | None:
    """Now, over the processors that may be used; `worker`: the engine's process, which is ours. None where it is not told."""
    import psutil

    try:
        every = psutil.cpu_times(percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
        spent = sum(_spent(each) for number, each in enumerate(every) if number in allowed)
        own = 0.0
        for process in (os.getpid(), worker):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(process).cpu_times()
                own += times.user + times.system
        return Busy(time.monotonic(), spent, own)
    except (OSError, psutil.Error):
        return None


def _spent(times: Any) -> float:
    return float(times.user + times.system + getattr(times, "steal", 0.0))


@dataclass(frozen=True, slots=True)
class LoadMeter:
    """Begun before something that takes a moment, read after it."""

    read: Callable[[], Busy | None]
    begun: Busy | None

    @classmethod
    def start(cls, worker: int) -> "LoadMeter":
        return cls(lambda: read_busy(worker), read_busy(worker))

    def busy_cores(self) -> float | None:
        """Cores that other programs kept busy since the start; None where that was too short ago, or is not told."""
        now = self.read()
        if self.begun is None or now is None or now.at - self.begun.at < SHORTEST_SECONDS:
            return None
        others = (now.all - self.begun.all) - (now.own - self.begun.own)
        return max(others, 0.0) / (now.at - self.begun.at)

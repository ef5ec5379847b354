"""How busy other programs keep the processor, from what the system counts."""

import os
import subprocess
import sys
import time

import pytest

from tokencli.world.load import Busy, LoadMeter, read_busy


def meter(before: Busy | None, after: Busy | None) -> float | None:
    return LoadMeter(lambda: after, before).busy_cores()


def test_what_others_spent_over_the_time_that_passed() -> None:
    assert meter(Busy(10, 100, 3), Busy(10.5, 101, 3.25)) == pytest.approx(1.5)
    assert meter(Busy(10, 100, 3), Busy(11, 101, 4)) == 0


def test_counters_that_disagree_by_a_tick_are_no_load() -> None:
    assert meter(Busy(10, 100, 3), Busy(11, 100.5, 3.51)) == 0


def test_too_short_or_untold_is_unknown() -> None:
    assert meter(Busy(10, 100, 3), Busy(10.05, 101, 3)) is None
    assert meter(None, Busy(11, 101, 3)) is None
    assert meter(Busy(10, 100, 3), None) is None


def test_the_systems_counters_are_read_and_our_own_work_is_told_apart() -> None:
    before = read_busy(os.getpid())
    assert before
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        own = LoadMeter.start(busy.pid)
        start = time.monotonic()
        while time.monotonic() - start < 1:
            pass
        seen = own.read()
        busy.kill()
    assert own.begun
    assert seen
    assert seen.own - own.begun.own > 0.2, "this process and the other one, taken for the worker"
    assert seen.all >= own.begun.all

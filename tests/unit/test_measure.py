"""How benchmarks compare: interleaved pairs, the median ratio, and an interval that really holds the median."""

import importlib.util
import random
import statistics
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("measure", Path(__file__).resolve().parents[2] / "scripts" / "measure.py")
assert SPEC
assert SPEC.loader
measure = importlib.util.module_from_spec(SPEC)
sys.modules["measure"] = measure
SPEC.loader.exec_module(measure)


@pytest.mark.parametrize(("pairs", "skipped"), [(1, 0), (4, 0), (5, 0), (7, 0), (8, 1), (9, 1), (11, 2), (15, 3), (28, 9)])
def test_the_interval_is_of_order_statistics(pairs: int, skipped: int) -> None:
    found = measure.ratio(list(range(1, pairs + 1)), [1] * pairs)
    assert (found.low, found.high) == (1 + skipped, pairs - skipped)
    assert found.median == statistics.median(range(1, pairs + 1))


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    source = random.Random(5)
    held = 0
    for _ in range(2000):
        found = measure.ratio([source.lognormvariate(0, 0.3) for _ in range(9)], [1] * 9)
        held += found.low <= 1 <= found.high
    assert held / 2000 > 0.9


def test_pairs_are_interleaved_and_swapped_after_a_warm_up() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    ours, theirs = measure.interleaved(lambda: side("a"), lambda: side("b"), 3)
    assert "".join(calls) == "ab" + "abbaab"
    assert (ours, theirs) == ([3, 6, 7], [4, 5, 8])

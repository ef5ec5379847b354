"""How this project compares two ways of doing something: interleaved pairs in one run, the median ratio and its interval."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of ours/theirs over the pairs, with an interval that holds the true median with at least 90 %."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} (interval {self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """From paired measurements. The interval is the sign test's: order statistics, no assumption about the noise."""
    ratios = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
    skip = _ranks_to_skip(len(ratios))
    return Ratio(statistics.median(ratios), ratios[skip], ratios[-1 - skip], len(ratios))


def interleaved(first: Callable[[], T], second: Callable[[], T], pairs: int) -> tuple[list[T], list[T]]:
    """Measure both in turn, the order swapped from pair to pair, after one of each as warm-up."""
    first(), second()
    results: tuple[list[T], list[T]] = ([], [])
    for index in range(pairs):
        order = ((0, first), (1, second)) if index % 2 == 0 else ((1, second), (0, first))
        for side, measure in order:
            results[side].append(measure())
    return results


def _ranks_to_skip(count: int) -> int:
    """How many of the smallest (and largest) values lie outside a 90 % interval of the median."""
    skip = 0
    while 2 * sum(math.comb(count, k) for k in range(skip + 1)) / 2**count <= 0.1 and skip < (count - 1) // 2:
        skip += 1
    return max(skip - 1, 0) if skip else 0

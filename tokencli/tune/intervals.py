"""A median and the interval that holds it, from measurements or from pairs of them. Pure; assumes nothing about the noise.

The interval is the sign test's: order statistics that hold the true median with at least 90 %, where there are 5 values or more.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 5  # values whose smallest and largest hold the true median with 90 %


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of `count` values and the interval that holds the true one with at least 90 % (of few: all values)."""

    median: float
    low: float
    high: float
    count: int

    @property
    def holds(self) -> bool:
        """Whether there are enough values for the interval to be one."""
        return self.count >= FEWEST


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of ours/theirs over the pairs, with an interval that holds the true median with at least 90 %."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def holds(self) -> bool:
        """Whether there are enough pairs for the interval to be one."""
        return self.pairs >= FEWEST

    def __str__(self) -> str:
        if not self.holds:
            return f"{self.median:.3f} ({self.pairs} pair{'s' * (self.pairs > 1)}, too few for an interval)"
        return f"{self.median:.3f} (interval {self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def interval(values: Sequence[float]) -> Interval:
    """Of one value or more."""
    ordered = sorted(values)
    skip = _ranks_to_skip(len(ordered))
    return Interval(statistics.median(ordered), ordered[skip], ordered[-1 - skip], len(ordered))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """From paired measurements."""
    found = interval([mine / other for mine, other in zip(ours, theirs, strict=True)])
    return Ratio(found.median, found.low, found.high, found.count)


def _ranks_to_skip(count: int) -> int:
    """How many of the smallest (and largest) values lie outside a 90 % interval of the median."""
    skip = 0
    while 2 * sum(math.comb(count, k) for k in range(skip + 1)) / 2**count <= 0.1 and skip < (count - 1) // 2:
        skip += 1
    return max(skip - 1, 0) if skip else 0

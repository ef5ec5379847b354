"""How this project compares two ways of doing something: interleaved pairs in one run, the median ratio and its interval."""

from collections.abc import Callable
from typing import TypeVar

from tokencli.tune.intervals import Ratio as Ratio
from tokencli.tune.intervals import ratio as ratio

T = TypeVar("T")


def interleaved(first: Callable[[], T], second: Callable[[], T], pairs: int) -> tuple[list[T], list[T]]:
    """Measure both in turn, the order swapped from pair to pair, after one of each as warm-up."""
    first(), second()
    results: tuple[list[T], list[T]] = ([], [])
    for index in range(pairs):
        order = ((0, first), (1, second)) if index % 2 == 0 else ((1, second), (0, first))
        for side, measure in order:
            results[side].append(measure())
    return results

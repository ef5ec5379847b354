"""Candidates measured in rounds, so that each is compared with what was measured beside it; losers leave early. Pure.

A round measures all that are left once, in the reverse of the last round's order: what drifts along cancels out, and the one
measured last comes first again, with nothing to load. Costs are seconds: less is better.
"""

import math
import statistics
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from tokencli.tune.intervals import Interval, Ratio, interval, ratio

C = TypeVar("C", bound=Hashable)

# Adjacent measurements of the same differ by up to 8 % on the machines of FACTS (Speed): one round decides at twice that.
_LOST_IN = {1: 1.16, 2: 1.08, 3: 1.03}
TELLING = 3  # rounds that a new leader is measured beside the incumbent, so that what it brings is known
_CHANCE = 0.0625  # how likely equals are to be told apart by their signs: 4 rounds of 4, 6 of 7


class Race(Generic[C]):
    """What was measured of the candidates, and who is left. The first is the incumbent; `to_the_end`: they leave only by failing,
    so that all are told apart by as many rounds.
    """

    def __init__(self, candidates: Sequence[C], to_the_end: bool = False) -> None:
        self._stay = to_the_end
        self.candidates = tuple(dict.fromkeys(candidates))
        self.incumbent = self.candidates[0]
        self.left = list(self.candidates)
        self.rounds = 0
        self._costs: dict[C, list[float]] = {each: [] for each in self.candidates}

    def order(self) -> list[C]:
        """Who is measured in the next round, in turn."""
        return self.left[::-1] if self.rounds % 2 else list(self.left)

    def add(self, costs: dict[C, float]) -> None:
        """One whole round: who has no cost in it has failed and leaves."""
        self.left = [each for each in self.left if each in costs]
        for each in self.left:
            self._costs[each].append(costs[each])
        self.rounds += 1
        self._drop_losers()

    @property
    def leader(self) -> C | None:
        """The best of those left; None where none is."""
        return min(self.left, key=self.cost, default=None)

    def cost(self, one: C) -> float:
        """Mean over its rounds: to compare those left, which were in all of them."""
        return _mean(self._costs[one])

    @property
    def is_decided(self) -> bool:
        return len(self.left) < 2

    def gain(self, one: C, other: C) -> Ratio | None:
        """How many times as fast the one is, with its interval; None where they shared no round."""
        shared = min(len(self._costs[one]), len(self._costs[other]))
        return ratio(self._costs[other][:shared], self._costs[one][:shared]) if shared else None

    def seconds(self, one: C) -> Interval | None:
        """Median and interval of what was measured of one; None where nothing was."""
        return interval(self._costs[one]) if self._costs[one] else None

    def beats(self, one: C, other: C) -> bool:
        """Whether the signs of the rounds, or a difference that no noise makes, tell the one from the other."""
        return loses([theirs / mine for theirs, mine in zip(self._costs[other], self._costs[one], strict=False)])

    def _drop_losers(self) -> None:
        leader = self.leader
        if leader is not None and not self._stay:
            stay = (leader, self.incumbent) if self.rounds < TELLING else (leader,)
            self.left = [each for each in self.left if each in stay or not self.beats(leader, each)]


def loses(ratios: Sequence[float]) -> bool:
    """Whether what costs so many times as much as something else has lost to it: far off in few rounds, or by the sign test."""
    count = len(ratios)
    if not count:
        return False
    if min(ratios) > 1 and _mean(ratios) > _LOST_IN.get(count, math.inf):
        return True
    won = sum(each < 1 for each in ratios)
    return _mean(ratios) > 1 and sum(math.comb(count, k) for k in range(won + 1)) / 2**count <= _CHANCE


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else math.inf

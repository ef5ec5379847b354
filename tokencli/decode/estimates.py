"""Running estimates of what speculation costs and brings: ratios of totals that forget. Pure: is told durations, has no clock."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Pair = Sequence[float]  # a total and its weight, as they are exported


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is set by judgement. tests/unit/test_depth.py halves and doubles each but the last, and little changes.

    Memories: the observations after which something counts by 1/e. A machine slows down within some ten passes (FACTS, Speed);
    guesses are ones and zeros, of which it takes twenty to know a tenth; what the text was like before them matters for longer.
    """

    times: float = 12.0  # passes of one length
    guesses: float = 20.0  # guesses of any place
    places: float = 33.0  # rounds: places and lengths not met since are like their neighbours again
    ever: float = 500.0  # guesses: what to expect after a rest
    prior: float = 2.0  # observations that knowing nothing counts for: few, so that what is seen soon decides
    neighbour: float = 6.0  # those that the place before counts for: texts differ much more than places do
    line: float = 1.0  # those that the straight line through all lengths counts for
    hope: float = 1.5  # standard deviations by which a draft is believed to be better, as long as nothing is lost
    first_rest: float = 6.0  # tokens without a draft before it is tried again; doubled each time it did not pay
    surprise: float = 5.0  # log-odds at which a run of guesses is taken for a change of content: chance makes one in e^5
    first_guess: float = 0.6  # chance of a guess before any was seen


HORIZON = 256  # tokens that a promise is about
STALL = 2.0  # an observation counts for at most so many times what was expected: the rest was somebody else's time
BINS = 8


class Running:
    """A total over a total, the newest counting most."""

    __slots__ = ("total", "weight")

    def __init__(self, total: float = 0.0, weight: float = 0.0) -> None:
        self.total, self.weight = total, weight

    def add(self, total: float, weight: float, memory: float) -> None:
        self.age(memory)
        self.total += total
        self.weight += weight

    def age(self, memory: float) -> None:
        kept = math.exp(-1 / memory)
        self.total *= kept
        self.weight *= kept

    def fade(self, most: float) -> None:
        """Count for no more than `most` observations from now on."""
        if self.weight > most:
            self.total *= most / self.weight
            self.weight = most

    def mean(self, expected: float, strength: float) -> float:
        """The ratio, with what was expected counting as `strength` observations."""
        return (self.total + expected * strength) / (self.weight + strength)

    @property
    def ratio(self) -> float | None:
        return self.total / self.weight if self.weight else None

    @property
    def pair(self) -> list[float]:
        return [self.total, self.weight]


class PassTimes:
    """Seconds of a pass of the target by its number of tokens, 1 to `most`; `table[n - 1]` for n. More never take less."""

    def __init__(self, most: int, tuning: Tuning, seen: Sequence[Pair] = ()) -> None:
        self._tuning = tuning
        self._seen = [Running(*pair) for pair in seen] or [Running() for _ in range(most)]
        self.table = [0.0] * most
        self._tabulate()

    def export(self) -> list[list[float]]:
        return [each.pair for each in self._seen]

    @property
    def known(self) -> bool:
        """Whether any pass has been timed."""
        return any(each.weight for each in self._seen)

    def measured(self, tokens: int) -> bool:
        """Whether a pass of this many tokens, or more, has been timed: up to there nothing is guessed."""
        return any(each.weight for each in self._seen[tokens - 1 :])

    def learn(self, tokens: int, seconds: float) -> float:
        """Take in a pass; the seconds that it counts for."""
        if self.known:
            limit = STALL * self.table[tokens - 1]
            seconds = min(seconds, limit if self.measured(tokens) else max(limit, self.worst(tokens)))
        for each in self._seen:
            each.age(self._tuning.places)
        self._seen[tokens - 1].add(seconds, 1.0, self._tuning.times)
        self._tabulate()
        return seconds

    def worst(self, tokens: int) -> float:
        """Where nothing was measured: as if each further token took as long as one alone."""
        if self.measured(tokens):
            return self.table[tokens - 1]
        last = max(index for index, each in enumerate(self._seen) if each.weight)
        return self.table[last] + (tokens - 1 - last) * self.table[0]

    def hoped(self, stake: float) -> list[float]:
        """The table as if more tokens than were ever timed cost nothing more, up to where they may cost `stake` more: what they
        cost is known only once it was tried.
        """
        last = max(index for index, each in enumerate(self._seen) if each.weight)
        hoped, table = self.table[last], self.table
        return [hoped if at > last and self.worst(at + 1) - hoped <= stake else table[at] for at in range(len(table))]

    def _tabulate(self) -> None:
        """What was seen of a length counts against the straight line through all: the less, the longer ago it was."""
        points = [(index, each.total / each.weight, each.weight) for index, each in enumerate(self._seen) if each.weight]
        if points:
            start, slope = _line(points)
            strength = self._tuning.line
            blend = ((at, (value * w + (start + slope * at) * strength) / (w + strength), w) for at, value, w in points)
            self.table = _filled(_rising(blend), slope, len(self._seen))


def _line(points: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Least squares by weight: the value at 0 and the slope; where there is one length only, half its time a token."""
    total = sum(weight for _, _, weight in points)
    place = sum(at * weight for at, _, weight in points) / total
    value = sum(each * weight for _, each, weight in points) / total
    spread = sum(weight * (at - place) ** 2 for at, _, weight in points)
    if len(points) == 1:
        slope = value / (2 + place)
    else:
        slope = max(0.0, sum(weight * (at - place) * (each - value) for at, each, weight in points) / spread)
    return value - slope * place, slope


def _rising(points: Iterable[tuple[int, float, float]]) -> dict[int, float]:
    """Isotonic regression: values by place, pooled where they would fall (pool adjacent violators)."""
    pools: list[tuple[list[int], float, float]] = []
    for place, value, weight in points:
        places = [place]
        while pools and pools[-1][1] > value:
            before, other, other_weight = pools.pop()
            value = (value * weight + other * other_weight) / (weight + other_weight)
            weight, places = weight + other_weight, before + places
        pools.append((places, value, weight))
    return {place: value for places, value, _ in pools for place in places}


def _filled(known: Mapping[int, float], slope: float, count: int) -> list[float]:
    """Between the known places linear, beyond them by the slope."""
    places = list(known)
    first, last = places[0], places[-1]
    table = [max(known[first] - slope * (first - at), known[first] / (1 + first)) for at in range(first)]
    for left, right in itertools.pairwise(places):
        step = (known[right] - known[left]) / (right - left)
        table += [known[left] + step * (at - left) for at in range(left, right)]
    return table + [known[last] + slope * (at - last) for at in range(last, count)]


class Guesses:
    """How often the guesses of one source stand, by place in the draft, and by the probability that the source gave them."""

    def __init__(self, most: int, tuning: Tuning, state: Mapping[str, Any]) -> None:
        self._tuning = tuning
        self._made = _list(state.get("made"), most)  # place j guessed, where place j-1 was
        self._stood = _list(state.get("stood"), most)  # place j guessed and right, where all before were
        self._told = _list(state.get("told"), BINS)  # right, by the probability told
        self._lately = Running(*state.get("lately", ()))  # right, of all guesses behind right ones
        self._ever = Running(*state.get("ever", ()))  # the same over a long time
        self._surprise = [0.0, 0.0]

    def export(self) -> dict[str, Any]:
        lists = {"made": self._made, "stood": self._stood, "told": self._told}
        pairs = {key: [each.pair for each in found] for key, found in lists.items()}
        return {**pairs, "lately": self._lately.pair, "ever": self._ever.pair}

    def learn(self, asked: int, made: int, accepted: int, told: Sequence[float]) -> None:
        """A round where `asked` guesses were allowed, `made` made and the first `accepted` right."""
        for each in (*self._made, *self._stood):
            each.age(self._tuning.places)
        for place in range(min(asked, made + 1)):
            self._made[place].add(place < made, 1.0, math.inf)
        for place in range(min(asked, accepted + 1)):
            self._stood[place].add(place < accepted, 1.0, math.inf)
        for place in range(min(made, accepted + 1)):
            self._notice(place < accepted)
            self._lately.add(place < accepted, 1.0, self._tuning.guesses)
            self._ever.add(place < accepted, 1.0, self._tuning.ever)
            if place < len(told):
                self._told[_bin(told[place])].add(place < accepted, 1.0, self._tuning.guesses)

    def _notice(self, right: bool) -> None:
        """A change of content: guesses lately right far more, or far less often than expected (Page's cumulative sums)."""
        expected = min(max(self.likely(), 0.03), 0.97)
        for index, other in enumerate((expected / 2, (1 + expected) / 2)):
            odds = other / expected if right else (1 - other) / (1 - expected)
            self._surprise[index] = max(0.0, self._surprise[index] + math.log(odds))
        if max(self._surprise) > self._tuning.surprise:
            self._surprise = [0.0, 0.0]
            self.fade(self._tuning.prior)

    def chance(self, probability: float) -> float:
        """How likely a guess of this probability stands: what was seen of its like, and at first its own word."""
        return self._told[_bin(probability)].mean(probability, self._tuning.prior)

    def likely(self) -> float:
        """A guess of any place behind right ones: as lately, as ever, and as nobody knows yet."""
        prior = self._tuning.prior
        return self._lately.mean(self._ever.mean(self._tuning.first_guess, prior), prior)

    def chain(self, most: int, hope: float = 0.0) -> Iterable[tuple[float, float]]:
        """By place: how likely it is guessed where the one before was, and right where all before were.

        `hope`: by how many standard deviations of what is known the first is taken to be likelier.
        """
        made, right, strength = 1.0, self.likely(), self._tuning.neighbour
        for place in range(most):
            made = self._made[place].mean(made, self._tuning.prior)
            stood = self._stood[place].mean(made * right, strength)
            right = min(1.0, stood / made)
            hoped = hope * math.sqrt(stood * (1 - stood) / (self._stood[0].weight + strength + 1)) if place == 0 else 0.0
            yield made, min(1.0, stood + hoped)

    def fade(self, most: float) -> None:
        """Let what comes next count more than what was."""
        for each in (*self._made, *self._stood, self._lately):
            each.fade(most)


class Source:
    """What is known of one source of guesses: its times, how often it is right, and how long it has been left alone."""

    def __init__(self, most: int, size: float, tuning: Tuning, state: Mapping[str, Any]) -> None:
        self.size = size
        self.guesses = Guesses(most, tuning, state.get("guesses", {}))
        self.step = Running(*state.get("step", ()))
        self.reading = Running(*state.get("reading", ()))
        self.rest = min(float(state.get("rest", tuning.first_rest)), HORIZON / 4)  # a new text may be of another kind
        self.rested = float(state.get("rested", 0.0))
        self.tried = bool(state.get("tried", False))

    def export(self) -> dict[str, Any]:
        numbers = {"rest": self.rest, "rested": self.rested, "tried": self.tried}
        return {"guesses": self.guesses.export(), "step": self.step.pair, "reading": self.reading.pair, **numbers}


def _list(pairs: Sequence[Pair] | None, count: int) -> list[Running]:
    return [Running(*pair) for pair in pairs] if pairs else [Running() for _ in range(count)]


def _bin(probability: float) -> int:
    """Each half as far from 1 as the one before: draft models are mostly near it."""
    return min(BINS - 1, int(-math.log2(1 - probability))) if probability < 1 else BINS - 1

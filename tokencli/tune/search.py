"""Which trial comes next, and what the trials say in the end: the fastest settings for a budget of seconds. Pure.

Dial by dial all values race against the best so far, which takes each winner up at once, so that gains are combined; then again,
as one dial's best depends on the others. Of the best three, measured anew, one is chosen; what it is measured against the start
after that, and nothing before, decides: a winner looks better than it is in the rounds that made it one.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from tokencli.tune.intervals import FEWEST, Interval, Ratio
from tokencli.tune.race import TELLING, Race

Value = str | int | bool

FINALISTS = 3
_ROUNDS = (4, 7, 12)  # of a race, pass by pass: what is left for the last differs by little
_CHOOSING = 4  # rounds of the finalists: the differences that matter show in them
_FAR = 1.08  # times as fast: neighbours that are the same differ by up to 8 % (FACTS, Speed)
# Rounds of the duel after which its interval is looked at, and where it must begin: looking each time finds gains in noise.
_LOOKS = {FEWEST: _FAR, 7: 1.0, 15: 1.0, 23: 1.0}
_USUAL_LOOK = 7
_MOST_FOR_FINAL = 0.4  # share of the budget
_STRIKES = 2
_HOPELESS = 4.0  # times the best's cost
_WORTH = 0.99  # of the best so far's cost: less of a gain is not taken up
_STEADY, _MOST_TO_WARM_UP = 0.05, 0.15  # the latter a share of the budget


class TrialFailed(Exception):
    """A trial that gave no figure: it crashed, hung, or found no memory. Says why."""


@dataclass(frozen=True, slots=True)
class Dial:
    """A setting and the values to try, in the order they are tried. `apart`: what is best of all others is another thing for each
    of its values (a device), so that each is followed for a while.
    """

    name: str
    values: tuple[Value, ...]
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A value for every dial, by name."""

    values: tuple[tuple[str, Value], ...] = ()

    def get(self, name: str) -> Value:
        return dict(self.values)[name]

    def put(self, name: str, value: Value) -> "Choice":
        return Choice(tuple(sorted({**dict(self.values), name: value}.items())))

    def beside(self, other: "Choice") -> dict[str, Value]:
        """What it has that the other has not."""
        return dict(each for each in self.values if each not in other.values)


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement as it came: seconds, or why there are none. `stage`: the dial it was for, "warm-up" or "confirm"."""

    choice: Choice
    stage: str
    seconds: float | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """What one value brought when it was taken up: how many times as fast it made the best so far."""

    dial: str
    value: Value
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Failure:
    """A value that gave no figure, and why not at last."""

    dial: str
    value: Value
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`best` is the start where nothing could be told from it. `gain` over the start is of the confirming runs alone; where it
    did not come to them, `confirmed` is false and `best` is what the races say; `told` is the last choice that several rounds of
    a race told far from what it replaced, the start where none was.
    """

    best: Choice
    gain: Ratio | None
    confirmed: bool
    mattered: tuple[Gain, ...]
    failures: tuple[Failure, ...]
    trials: int
    seconds: float
    before: Interval | None = None  # seconds of the start, and of the best, in the confirming runs
    after: Interval | None = None
    told: Choice | None = None

    def broken_off(self) -> "Outcome":
        """What of it is kept when the user has had enough: what was confirmed, else what was told by then."""
        if self.confirmed or self.told is None:
            return self
        told = self.told
        return replace(self, best=told, mattered=tuple(each for each in self.mattered if told.get(each.dial) == each.value))


# Measures a choice in seconds; `fresh`: in a new process. Raises TrialFailed.
Measure = Callable[[Choice, bool], float]
Steps = Generator[Trial, None, None]
Figure = Generator[Trial, None, float | None]


@dataclass(slots=True)
class Search:
    """Run `steps` to the end or as far as wanted; `outcome` is what is known by then."""

    dials: Sequence[Dial]
    start: Choice
    measure: Measure
    now: Callable[[], float]
    budget: float
    _began: float = field(init=False)
    _taken: list[Choice] = field(init=False)  # the best so far, one after the other
    _costs: dict[Choice, float] = field(default_factory=dict)  # over the start's, by the races
    _mattered: list[Gain] = field(default_factory=list)
    _failures: dict[tuple[str, Value], list[str]] = field(default_factory=dict)
    _told: list[Choice] = field(init=False)
    _final: Race[Choice] | None = None  # the duel
    _trials: int = 0
    _measuring: float = 0.0
    _longest: float = 0.0
    _per_start: float = 0.0

    def __post_init__(self) -> None:
        self._taken, self._told, self._began = [self.start], [self.start], self.now()
        self._costs[self.start] = 1.0

    def steps(self) -> Steps:
        """All trials. Raises TrialFailed where the start itself cannot be measured."""
        yield from self._warm_up()
        for dial in self.dials:
            if dial.apart:
                yield from self._follow_each(dial)
        for most in _ROUNDS:
            for dial in self.dials:
                yield from self._try(dial, most)
        yield from self._confirm()

    def outcome(self) -> Outcome:
        best, gain, confirmed = self._chosen()
        changed = best.beside(self.start)
        kept = {each.dial: each for each in self._mattered if changed.get(each.dial) == each.value}
        return Outcome(
            best=best,
            gain=gain,
            confirmed=confirmed,
            mattered=tuple(sorted(kept.values(), key=lambda each: -each.ratio.median)),
            failures=tuple(Failure(dial, value, reasons[-1]) for (dial, value), reasons in self._failures.items()),
            trials=self._trials,
            seconds=self.now() - self._began,
            before=self._final.seconds(self.start) if self._final and confirmed else None,
            after=self._final.seconds(best) if self._final and confirmed else None,
            told=self._told[-1],
        )

    @property
    def best(self) -> Choice:
        """What the next values are tried beside."""
        return self._taken[-1]

    # inside

    def _warm_up(self) -> Steps:
        """Until two measurements in a row agree: clocks rise and fall, shaders are compiled (reports A7-03, A7-19)."""
        last = yield from self._measured_twice(self.start, "warm-up")
        if last is None:
            raise TrialFailed("the plan as it is cannot be measured")
        while self._left > (1 - _MOST_TO_WARM_UP) * self.budget:
            seconds = yield from self._measured_twice(self.start, "warm-up")
            if seconds is not None and abs(seconds - last) < _STEADY * last:
                return
            last = seconds or last

    def _follow_each(self, apart: Dial) -> Steps:
        """From every value that is not hopeless its own way through the other dials; the best of the ends goes on."""
        first = yield from self._race([self.start.put(apart.name, value) for value in apart.values], apart.name, 1)
        ends: list[Choice] = []
        for begin in sorted(first.candidates, key=first.cost):
            if first.cost(begin) < _HOPELESS * first.cost(first.leader or begin):
                self._taken.append(begin)
                for dial in self.dials:
                    if dial != apart:
                        yield from self._try(dial, _ROUNDS[0])
                ends.append(self.best)
        last = yield from self._race(ends or [self.start], apart.name, _ROUNDS[1])
        self._taken.append(last.leader or self.start)
        value, old = self.best.get(apart.name), self.start.get(apart.name)
        from_old = next((last.gain(self.best, end) for end in ends if end.get(apart.name) == old), None)
        gain = from_old or first.gain(self.start.put(apart.name, value), self.start)
        if value != old and gain:
            self._mattered.append(Gain(apart.name, value, gain))
        if value != old and from_old and _tells_far(from_old):
            self._told.append(self.best)

    def _try(self, dial: Dial, most_rounds: int) -> Steps:
        """Race the dial's values against the best so far, and take the winner up."""
        values = [value for value in dial.values if len(self._failures.get((dial.name, value), ())) < _STRIKES]
        race = yield from self._race([self.best, *(self.best.put(dial.name, value) for value in values)], dial.name, most_rounds)
        if race.rounds:
            self._take_up(race, dial.name)

    def _race(self, candidates: Sequence[Choice], stage: str, most_rounds: int) -> Generator[Trial, None, Race[Choice]]:
        race = Race(candidates)
        while not race.is_decided and race.rounds < most_rounds and self._may_explore(len(race.left)):
            yield from self._round(race, stage)
        before = race.incumbent
        for choice in race.candidates:
            gain = race.gain(choice, before)
            if gain:
                self._costs[choice] = self._costs.get(before, 1.0) / gain.median
        return race

    def _round(self, race: Race[Choice], stage: str, fresh: bool = False) -> Steps:
        """What has worked in the race before gets a second chance when it fails."""
        costs: dict[Choice, float] = {}
        for choice in race.order():
            trusted = choice == race.incumbent or race.rounds > 0 or race is self._final
            seconds = yield from (self._measured_twice if trusted else self._measured)(choice, stage, fresh)
            if seconds is not None:
                costs[choice] = seconds
        race.add(costs)

    def _measured_twice(self, choice: Choice, stage: str, fresh: bool = False) -> Figure:
        seconds = yield from self._measured(choice, stage, fresh, counts=False)
        return seconds if seconds is not None else (yield from self._measured(choice, stage, True))

    def _measured(self, choice: Choice, stage: str, fresh: bool, counts: bool = True) -> Figure:
        """A failure counts against the value that was new: twice, and it is not tried again, as a hang costs many trials."""
        before, seconds, why = self.now(), None, None
        try:
            seconds = self.measure(choice, fresh)
        except TrialFailed as failure:
            why = str(failure)
            if counts and choice != self.best and stage in dict(choice.values):
                self._failures.setdefault((stage, choice.get(stage)), []).append(why)
        spent = self.now() - before
        self._trials += 1
        self._measuring += spent
        self._longest = max(self._longest, spent if seconds is not None else 0.0)
        if choice == self.start and stage == "warm-up" and seconds is not None:
            self._per_start = spent  # the last one: steady, and nothing to load
        yield Trial(choice, stage, seconds, why)
        return seconds

    def _take_up(self, race: Race[Choice], dial: str) -> None:
        before, leader = race.incumbent, race.leader
        if leader is None or before not in race.left:  # lost, or broke down where others did not
            self._taken.append(leader or self.start)
        elif race.cost(leader) < _WORTH * race.cost(before):
            self._taken.append(leader)
        gain = race.gain(self.best, before) if self.best in race.candidates else None
        if gain and race.beats(self.best, before):
            self._mattered.append(Gain(dial, self.best.get(dial), gain))
        if gain and _tells_far(gain) and self._is_beside(self._told[-1]):
            self._told.append(self.best)

    def _is_beside(self, other: Choice) -> bool:
        """Whether the best so far is of the same device as another: on its own way it says nothing of the start."""
        return all(self.best.get(dial.name) == other.get(dial.name) for dial in self.dials if dial.apart)

    def _confirm(self) -> Steps:
        """The start and the best three, in new processes; fewer where there is no time for three. Then the best and the start."""
        found = sorted(self._costs, key=lambda each: self._costs[each])
        count = next((each for each in range(FINALISTS, 1, -1) if self._confirming(each) <= self._left), 1)
        finalists = [each for each in dict.fromkeys([self.best, *found]) if each != self.start][:count]
        race = Race([self.start, *finalists], to_the_end=True)
        while len(finalists) > 1 and race.rounds < _CHOOSING:
            if len(race.left) < 2 or not self._has_time(len(race.left)):
                return
            yield from self._round(race, "confirm", fresh=race.rounds == 0)
        chosen = min((each for each in race.left if each != self.start), key=race.cost, default=None)
        if chosen:
            yield from self._duel(chosen, fresh=race.rounds == 0)

    def _duel(self, chosen: Choice, fresh: bool) -> Steps:
        """Until an interval tells the two apart, or the chosen one does not even look better."""
        race = self._final = Race([self.start, chosen], to_the_end=True)
        for look, least in _LOOKS.items():
            while race.rounds < look:
                if race.is_decided or not self._has_time(2):
                    return
                yield from self._round(race, "confirm", fresh=fresh and race.rounds == 0)
            gain = race.gain(chosen, self.start)
            if gain and (gain.low > least or gain.median < 1):
                return

    def _chosen(self) -> tuple[Choice, Ratio | None, bool]:
        race = self._final
        if race is None or race.rounds < FEWEST:
            return min(self._taken, key=lambda each: self._costs.get(each, math.inf)), None, False
        best = race.candidates[-1]
        gain = race.gain(best, self.start) if best in race.left else None
        return (best, gain, True) if gain and gain.low > 1 else (self.start, None, True)

    def _has_time(self, trials: int) -> bool:
        return self._left >= trials * self._per_trial

    @property
    def _left(self) -> float:
        return self.budget - (self.now() - self._began)

    @property
    def _per_trial(self) -> float:
        return self._measuring / max(self._trials, 1)

    def _may_explore(self, trials: int) -> bool:
        """Whether so many more trials leave the time that confirming takes."""
        confirming = min(self._confirming(FINALISTS), _MOST_FOR_FINAL * self.budget)
        return self._left - trials * self._per_trial > confirming

    def _confirming(self, finalists: int) -> float:
        """Seconds that it takes, by what trials took so far: all are loaded anew, then measured in turn."""
        choosing = _CHOOSING if finalists > 1 else 0
        start = max(self._per_trial, self._per_start)
        loading = (finalists + 1) * self._longest
        return loading + choosing * (finalists * self._per_trial + start) + _USUAL_LOOK * (self._per_trial + start)


def _tells_far(gain: Ratio) -> bool:
    """Whether a race's few rounds say enough to be kept when it is broken off."""
    return gain.pairs >= TELLING and gain.low > 1 and gain.median > _FAR

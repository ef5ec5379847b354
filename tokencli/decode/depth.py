"""How many tokens to guess in the next round, and by which source: what promises the least seconds per token by what was
measured. Nothing guessed is one of the choices. Pure: is told what rounds took, has no clock, knows no engine.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokencli.decode.estimates import HORIZON, STALL, PassTimes, Running, Source, Tuning

# The promises, in tokens of plain decoding: at most 3 % of 256 tokens lost from cold, at most 1 % later. What is put at stake is
# two thirds of the one and half of the other: costs are known only after they were paid.
COLD_PURSE = HORIZON * 0.03 * 2 / 3
WARM_PURSE = HORIZON * 0.01 / 2
INCOME = 0.01 / 2

FIRST_ROUNDS = 2  # plain ones first: a single one may be a stall
LONGEST_REST = 8 * HORIZON
SHORTEST_TAIL = 16  # fewer words of a text tell a draft nothing


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do next: `depth` guesses by `source`; nothing where it is None.

    `trial`: to learn, not because it promises more. `tail`: the draft may read only so much of the end of the text for it.
    """

    source: str | None = None
    depth: int = 0
    trial: bool = False
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """What became of a choice: of `made` guesses the first `accepted` stand.

    Seconds: `verify` of the target's pass; `reading` of the draft's first call, which read `read` tokens; `draft` of its `steps`
    behind that; `rest` of everything else. `told`: the probabilities that the draft gave its guesses.
    """

    choice: Choice
    made: int
    accepted: int
    verify: float
    rest: float = 0.0
    reading: float = 0.0
    read: int = 0
    draft: float = 0.0
    steps: int = 0
    told: Sequence[float] = ()

    @property
    def tokens(self) -> int:
        return self.accepted + 1

    @property
    def seconds(self) -> float:
        return self.verify + self.rest + self.draft + self.reading


class Controller:
    """Chooses before each round, and is told of it after. `sources`: the size of their weights as a share of the target's, by
    name; 0 for one that costs nothing to ask.
    """

    def __init__(
        self, most: int, sources: Mapping[str, float], state: Mapping[str, Any] | None = None, tuning: Tuning | None = None
    ) -> None:
        """`state`: what `export` gave, perhaps in another run."""
        state, self._tuning = state or {}, tuning or Tuning()
        self.most = most
        self._passes = PassTimes(most + 1, self._tuning, state.get("passes", ()))
        self._rest = [Running(*pair) for pair in state.get("rest", ((), (), ()))]  # plain, all accepted, cut
        self._prompt = Running(*state.get("prompt", ()))
        known = state.get("sources", {})
        self._sources = {name: Source(most, size, self._tuning, known.get(name, {})) for name, size in sources.items()}
        self._purse = WARM_PURSE if state else COLD_PURSE
        self._rounds = int(state.get("rounds", 0))
        self._since_plain = 0.0
        self._reach = 1.0  # how likely all guesses of this round so far are right
        self._table = self._passes.table  # seconds of the target's pass by guesses, what is hoped for included
        self._token = 0.0  # what a token is worth: the seconds that it takes at best

    def export(self) -> dict[str, Any]:
        """All that the next controller for the same models needs: numbers in lists, for JSON."""
        return {
            "most": self.most,
            "passes": self._passes.export(),
            "rest": [each.pair for each in self._rest],
            "prompt": self._prompt.pair,
            "sources": {name: source.export() for name, source in self._sources.items()},
            "rounds": self._rounds,
        }

    @classmethod
    def going_on(cls, most: int, sources: Mapping[str, float], state: object) -> "Controller":
        """From a state that may be damaged or of other models: then a new one."""
        with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):
            if isinstance(state, Mapping) and state["most"] == most and set(state["sources"]) == set(sources):
                found = cls(most, sources, state)
                if _same_shape(found.export(), cls(most, sources).export()):
                    return found
        return cls(most, sources)

    # before a round

    def choose(self, backlog: Mapping[str, int], most: int) -> Choice:
        """`backlog`: tokens that a source would have to read first, for those that have something to say now."""
        self._reach, most = 1.0, min(most, self.most)
        if most <= 0 or not backlog or self._rounds < FIRST_ROUNDS:
            return Choice()
        best, self._token = Choice(), self.plain_seconds
        self._table = self._passes.hoped(self._purse / 2 * self.plain_seconds)
        for name, behind in backlog.items():
            source = self._sources[name]
            if self._has_costs(source):
                depth, seconds = self._best_depth(source, behind, most, self._table, self._hope(source, behind))
                if seconds < self._token:
                    best, self._token = Choice(name, most if source.size else depth), seconds  # a model is stopped by `goes_on`
        return self._trial(backlog, best, most) or self._plain_again(best) or best

    @property
    def plain_seconds(self) -> float:
        """Seconds per token without guesses."""
        return self._passes.table[0] + self._rest_of(0)

    def gain(self) -> float | None:
        """Speed of the best depth as a multiple of plain decoding, by what is known now; None where nothing was tried."""
        tried = [source for source in self._sources.values() if source.tried]
        found = [self._best_depth(source, 0, self.most, self._passes.table)[1] for source in tried]
        return self.plain_seconds / min(found, default=math.inf) or None

    def goes_on(self, choice: Choice, made: int, probability: float) -> tuple[bool, bool]:
        """Whether the guess that `made` counts last is worth checking, and whether one more is worth making."""
        assert choice.source
        source = self._sources[choice.source]
        before, self._reach = self._reach, self._reach * source.guesses.chance(probability)
        if choice.trial:
            return True, made < choice.depth
        keeping = self._reach * self._token - self._further(made - 1, made) - (before - self._reach) * self._cut
        going_on = self._going_on(source, made, choice.depth)
        return keeping + max(going_on, 0.0) >= 0, going_on >= 0 and keeping + going_on >= 0

    # after it

    def prompt_read(self, tokens: int, seconds: float) -> None:
        """The target has read so much of a prompt: by that the draft's reading is estimated before it was ever timed."""
        if tokens >= SHORTEST_TAIL:
            self._prompt.add(seconds, tokens, 1.0)

    def learn(self, done: Round) -> None:
        plain = self.plain_seconds if self._passes.known else done.seconds
        rest = self._rest[0 if not done.made else 1 if done.accepted == done.made else 2]
        counted = min(done.rest, STALL * (rest.ratio or 0.0) + self._passes.table[0])
        rest.add(counted, 1.0, self._tuning.times)
        counted += self._passes.learn(done.made + 1, done.verify)
        self._rounds += 1
        self._since_plain = self._since_plain + done.tokens if done.made else 0.0
        for name, source in self._sources.items():
            if name == done.choice.source:
                counted += self._learn_source(source, done)
                self._purse += done.tokens - counted / plain  # a stall is no fault of the draft's
            else:
                source.rested += done.tokens
        # No debts: what was dear once, perhaps for a stall, is priced by its own measure the next time.
        self._purse = min(max(self._purse, 0.0) + INCOME * done.tokens, COLD_PURSE)

    def overheard(self, name: str, made: int, accepted: int) -> None:
        """What a source that costs nothing would have guessed, had it been asked, and how much of it came true."""
        self._sources[name].guesses.learn(made, made, accepted, ())

    def _learn_source(self, source: Source, done: Round) -> float:
        """The seconds that its own work counts for."""
        source.tried, source.rested = True, 0.0
        first = done.reading if done.read <= 2 else 0.0  # two tokens are read as fast as one
        steps = done.steps + (0 < done.read <= 2)
        stepping, reading = done.draft + first, done.reading - first
        stepping = min(stepping, STALL * steps * self._step(source))
        if source.reading.weight:
            reading = min(reading, STALL * done.read * self._reading(source))
        if steps:
            source.step.add(stepping, steps, self._tuning.times)
        if done.read > 2:
            source.reading.add(reading, done.read, self._tuning.times)
        source.guesses.learn(done.choice.depth, done.made, done.accepted, done.told)
        if not done.choice.trial:
            source.rest = max(self._tuning.first_rest, source.rest - done.tokens)
        elif done.accepted < done.made or not done.made:
            source.rest = min(2 * source.rest, LONGEST_REST)
        return stepping + reading

    # inside

    def _further(self, depth: int, deeper: int) -> float:
        """Seconds by which the target's pass takes longer."""
        return self._table[deeper] - self._table[depth]

    @property
    def _cut(self) -> float:
        """Seconds of taking refused guesses back."""
        return max(0.0, self._rest_of(2) - self._rest_of(1))

    def _going_on(self, source: Source, made: int, most: int) -> float:
        """Seconds won by more guesses behind those `made`, as many as win most: the next alone may cost a step of the pass's time
        that the ones behind it share.
        """
        likely, step, reach = source.guesses.likely(), self._step(source), self._reach
        won, best = 0.0, -math.inf
        for depth in range(made, most):
            before, reach = reach, reach * likely
            won += reach * self._token - step - self._further(depth, depth + 1) - (before - reach) * self._cut
            best = max(best, won)
        return best

    def _rest_of(self, kind: int) -> float:
        """Seconds of a round outside of both models: plain, all guesses right, some taken back."""
        plain = self._rest[0].ratio or 0.0
        return plain if kind == 0 else self._rest[kind].mean(plain, self._tuning.prior / 4)

    def _step(self, source: Source) -> float:
        return source.step.mean(source.size * self._passes.table[0], _SLIGHT)

    def _reading(self, source: Source) -> float:
        """Seconds per token of the backlog."""
        told = self._prompt.ratio
        return source.reading.mean(self._step(source) if told is None else source.size * told, _SLIGHT)

    def _has_costs(self, source: Source) -> bool:
        """Whether its costs were measured: one that is free to ask has only those of the target's longer pass."""
        return source.tried or (source.size == 0 and self._passes.measured(2))

    def _hope(self, source: Source, behind: int) -> float:
        """How much better than known a source is believed to be: the more, the more may still be lost. What is more dear to
        catch up with than that must be surely good.
        """
        price = max(0, behind - 2) * self._reading(source) / self.plain_seconds
        return self._tuning.hope * (self._purse - price) / COLD_PURSE

    def _best_depth(self, source: Source, behind: int, most: int, table: Sequence[float], hope: float = 0.0) -> tuple[int, float]:
        """The depth with the least seconds per token, and how many; catching up is spread over the horizon."""
        step, cut, whole = self._step(source), self._rest_of(2), self._rest_of(1)
        reach = tokens = alive = 1.0
        ended = 0.0  # seconds of the rounds that made fewer guesses
        best = 1, float("inf")
        for depth, (made, stood) in enumerate(source.guesses.chain(most, hope), start=1):
            ended += alive * (1 - made) * (table[depth - 1] + depth * step)
            alive *= made
            reach *= stood
            tokens += reach
            seconds = (ended + alive * (table[depth] + depth * step) + reach * whole + (1 - reach) * cut) / tokens
            if seconds < best[1]:
                best = depth, seconds
        return best[0], best[1] + max(0, behind - 2) * self._reading(source) / HORIZON

    def _trial(self, backlog: Mapping[str, int], best: Choice, most: int) -> Choice | None:
        """A look at a source that promises less, or of which nothing is known: as deep as the purse pays for."""
        for name, behind in backlog.items():
            source = self._sources[name]
            if name == best.source or (source.rested < source.rest if source.tried else self._has_costs(source)):
                continue
            depth, tail = self._affordable(source, behind, most)
            if depth and source.tried:
                source.guesses.fade(self._tuning.prior)
                depth = min(depth, self._best_depth(source, 0, most, self._table)[0])
            if depth:
                return Choice(name, depth, trial=True, tail=tail)
        return None

    def _affordable(self, source: Source, behind: int, most: int) -> tuple[int, int]:
        """As deep as half the purse pays for if all guesses are wrong, and as many tokens of the backlog as the rest does."""
        stake, step, reading = self._purse * self.plain_seconds, self._step(source), self._reading(source)
        for depth in range(most, 0, -1):
            price = depth * step + self._passes.worst(depth + 1) - self._passes.table[0]
            if price <= stake / 2:
                tail = behind if not reading else min(behind, int((stake - price) / reading))
                return (depth, tail) if tail >= min(behind, SHORTEST_TAIL) else (0, 0)
        return 0, 0

    def _plain_again(self, best: Choice) -> Choice | None:
        """A round without guesses now and then, to know what it takes: when that costs no more than what is put aside for it."""
        lost = self.plain_seconds / self._token - 1
        return Choice() if best.source and lost < INCOME * self._since_plain else None


_SLIGHT = 0.1  # a first guess of a time counts as a tenth of a measurement: it is forgotten with the first


def _same_shape(found: Any, wanted: Any) -> bool:
    """Whether two values of JSON have the same keys and lengths, and finite numbers in the same places."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same_shape(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same_shape, found, wanted))
    return math.isfinite(found) and found >= 0

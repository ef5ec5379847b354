"""Worlds to speculate in: what passes cost and when guesses stand, on a clock that only the simulation moves; and the players
that other tools would send into them.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokencli.decode.depth import Choice, Controller, Round
from tokencli.decode.estimates import Tuning

MOST = 16
STALL = 9.0
SHORT_MEMORY = 0.85  # how much rarer guesses stand where the draft has read only a tail of the text


@dataclass(frozen=True, slots=True)
class World:
    """Seconds in units of one plain pass. `chance` of a guess by its place in the text and in the draft (from 1)."""

    name: str
    chance: Callable[[int, int], float]
    verify: Callable[[int], float]
    step: float
    prefill: float = 0.15  # of the target, a token; the draft's is to its step as this is to 1
    size: float | None = None  # what the controller is told of the draft's weights; None: its step, truly
    prompt: int = 60
    tells: float = 0.1  # how far the probability that the draft tells is from the truth; above 1: nothing of it
    python: float = 0.01
    cut: float = 0.0  # of taking back refused guesses
    noise: float = 0.05
    stalls: float = 0.0  # in a unit of time, whoever runs then
    slowing: Callable[[int], float] = lambda _at: 1.0
    lookup: Callable[[int, int], float] | None = None  # like `chance`; below 0 where it finds nothing


class Simulation:
    """One text in one world. Two simulations of the same seed have the same text, whatever is guessed."""

    def __init__(self, world: World, seed: int, length: int) -> None:
        source = random.Random(f"{world.name} {seed}")
        self.world = world
        self.at = 0
        self.clock = self.stalled = 0.0
        self._luck = [source.random() for _ in range(length + 2 * MOST)]
        self._told = [source.gauss(0, 1) for _ in self._luck]
        self._noise, self._stalls = random.Random(seed), random.Random(seed)
        self._stall = self._stalls.expovariate(world.stalls) if world.stalls else math.inf  # when the next one comes
        self._from = self._read = -world.prompt  # what of the text the draft has read

    def backlog(self) -> dict[str, int]:
        found = {"model": self._behind()}
        if self.world.lookup and self.world.lookup(self.at + 1, 1) >= 0:
            found = {"lookup": 0, **found}
        return found if self.world.step < math.inf else {key: 0 for key in found if key == "lookup"}

    def play(self, choice: Choice, goes_on: Callable[[int, float], tuple[bool, bool]] | None = None) -> Round:
        """One round; the clock goes on by what it takes."""
        draft = reading = 0.0
        steps = read = made = 0
        told: list[float] = []
        world = self.world
        while choice.source and made < choice.depth:
            if choice.source == "model" and made == 0:
                read = self._catch_up(choice.tail)
                reading = self._takes(world.step * (1 + max(0, read - 1) * world.prefill))
            elif choice.source == "model":
                draft += self._takes(world.step)
                steps += 1
            made += 1
            if choice.source == "model":
                told.append(self._probability(made))
                keeps, goes = goes_on(made, told[-1]) if goes_on else (True, True)
                made -= not keeps
                if not (keeps and goes):
                    break
        accepted = 0
        while accepted < made and self._stands(choice.source, accepted + 1):
            accepted += 1
        if choice.source == "model":
            self._read = self.at + 1 + min(accepted, max(made - 1, 0))
        verify = self._takes(world.verify(made + 1))
        rest = self._takes(world.python + (world.cut if accepted < made else 0.0))
        self.at += accepted + 1
        return Round(choice, made, accepted, verify, rest, reading, read, draft, steps, told)

    def _behind(self) -> int:
        whole = self._from == -self.world.prompt
        return self.at + 1 - (self._read if whole else -self.world.prompt)

    def _catch_up(self, tail: int | None) -> int:
        """Tokens that the draft reads first; a tail alone is a short memory, and all of the text is to be read after it."""
        behind = self._behind()
        if tail is not None and tail < behind:
            behind, self._from = tail, self.at + 1 - tail
        elif behind > self.at + 1 - self._read:
            self._from = -self.world.prompt
        return behind

    def _stands(self, source: str | None, place: int) -> bool:
        at = self.at + place
        if source == "lookup":
            assert self.world.lookup
            return self._luck[at] < self.world.lookup(at, place)
        return self._luck[at] < self.world.chance(at, place) * (1 if self._from == -self.world.prompt else SHORT_MEMORY)

    def _probability(self, place: int) -> float:
        """What the draft says of its guess: the truth, blurred on the logit scale."""
        at = self.at + place
        if self.world.tells > 1:
            return 0.7
        true = min(max(self.world.chance(at, place), 0.01), 0.99)
        return 1 / (1 + math.exp(-math.log(true / (1 - true)) - 10 * self.world.tells * self._told[at]))

    def _takes(self, seconds: float) -> float:
        seconds *= math.exp(self._noise.gauss(0, self.world.noise)) * self.world.slowing(self.at)
        while self.clock + seconds > self._stall:
            seconds += STALL
            self.stalled += STALL
            self._stall += self._stalls.expovariate(self.world.stalls)
        self.clock += seconds
        return seconds


# --- who plays


class Player(Protocol):
    def play(self, simulation: Simulation) -> Round:
        """One round."""


class Ours:
    def __init__(self, world: World, state: dict | None = None, tuning: Tuning | None = None) -> None:
        sources = {"lookup": 0.0, "model": world.step if world.size is None else world.size}
        self.controller = Controller(MOST, sources, state, tuning)
        self.controller.prompt_read(world.prompt, world.prompt * world.prefill)

    def play(self, simulation: Simulation) -> Round:
        choice = self.controller.choose(simulation.backlog(), MOST)
        done = simulation.play(choice, lambda made, told: self.controller.goes_on(choice, made, told))
        self.controller.learn(done)
        return done


class Fixed:
    """A depth, always; by lookup where there is no draft model."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def play(self, simulation: Simulation) -> Round:
        return simulation.play(guess(simulation, self.depth))


class OneUpOneDown(Fixed):
    """One deeper after a draft that stood whole, one less deep after one that did not; never off (as exllamav3 does)."""

    def __init__(self) -> None:
        super().__init__(4)

    def play(self, simulation: Simulation) -> Round:
        done = super().play(simulation)
        if done.made:
            self.depth = min(MOST, self.depth + 1) if done.accepted == done.made else max(1, self.depth - 1)
        return done


class EpsilonGreedy:
    """A bandit over depths 1 to 16 without an off arm: the best by total tokens over total time, any in one round of ten."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self._seen = {depth: [0.0, 0.0] for depth in range(1, MOST + 1)}

    def play(self, simulation: Simulation) -> Round:
        tried = [depth for depth, (_, seconds) in self._seen.items() if seconds]
        if not tried or self._source.random() < 0.1:
            depth = self._source.randint(1, MOST)
        else:
            depth = max(tried, key=lambda each: self._seen[each][0] / self._seen[each][1])
        done = simulation.play(guess(simulation, depth))
        self._seen[depth][0] += done.tokens
        self._seen[depth][1] += done.seconds
        return done


class Gate:
    """Some tokens at depth 4, some plain, then the faster of the two for good."""

    def __init__(self, tokens: int = 16) -> None:
        self._tokens = tokens
        self._spent = {4: [0.0, 0.0], 0: [0.0, 0.0]}

    def play(self, simulation: Simulation) -> Round:
        depth = next((each for each, (tokens, _) in self._spent.items() if tokens < self._tokens), None)
        if depth is None:
            depth = max(self._spent, key=lambda each: self._spent[each][0] / self._spent[each][1])
        done = simulation.play(guess(simulation, depth))
        self._spent[depth][0] += done.tokens
        self._spent[depth][1] += done.seconds
        return done


def guess(simulation: Simulation, depth: int) -> Choice:
    """That many guesses by the model, or by lookup where there is none."""
    sources = simulation.backlog()
    if not depth or not sources:
        return Choice()
    return Choice("model" if "model" in sources else "lookup", depth)


def seconds_per_token(world: World, player: Player, seed: int, tokens: int) -> float:
    """Without the stalls themselves, which are a matter of luck: what they make a player do counts."""
    simulation = Simulation(world, seed, tokens)
    while simulation.at < tokens:
        player.play(simulation)
    return (simulation.clock - simulation.stalled) / simulation.at


# --- where


def always(probability: float) -> Callable[[int, int], float]:
    return lambda _at, _place: probability


def falling(first: float, by: float) -> Callable[[int, int], float]:
    """Less by place in the draft."""
    return lambda _at, place: first * by ** (place - 1)


def mixed(share: float, easy: float = 0.98, hard: float = 0.25, seed: int = 0) -> Callable[[int, int], float]:
    """Easy and hard tokens in random order, as real text has them."""
    easy_at = [random.Random(f"{seed} {at}").random() < share for at in range(4096)]
    return lambda at, _place: easy if easy_at[at % 4096] else hard


def parts(*each: tuple[int, float]) -> Callable[[int, int], float]:
    """(length, probability) in turn, over and over: code, then prose."""
    whole = [probability for length, probability in each for _ in range(length)]
    return lambda at, _place: whole[at % len(whole)]


def drifting(low: float, high: float, period: int) -> Callable[[int, int], float]:
    return lambda at, _place: low + (high - low) * (0.5 + 0.5 * math.sin(2 * math.pi * at / period))


def rows(each: float) -> Callable[[int], float]:
    """Each further token takes so much of a pass."""
    return lambda count: 1 + each * (count - 1)


def stairs(size: int, each: float) -> Callable[[int], float]:
    """A kernel's tiles: a step every so many tokens."""
    return lambda count: 1 + each * ((count - 1) // size)


def free_until(count: int, each: float) -> Callable[[int], float]:
    """Bandwidth-bound up to a number of tokens, compute-bound behind it."""
    return lambda tokens: 1 + 0.02 * (tokens - 1) + each * max(0, tokens - count)


def seen(*passes: float) -> Callable[[int], float]:
    """As measured, by the number of tokens from 1; behind the last as much more a token as there."""
    return lambda count: passes[count - 1] if count <= len(passes) else passes[-1] + (count - len(passes)) * 0.2


# SmolLM2's F16 target on two cores of an EPYC, medians of nine, 2026-12-01, and a step of the original
# (0.21). The weak one's step is that without a tenth of its blocks; how often guesses stand is made up, as everywhere here.
TWO_CORES = seen(1, 1.38, 1.4, 1.5, 1.71, 1.68, 1.89, 2.29, 2.29, 2.5)
NEVER = math.inf
WORLDS: Sequence[World] = (
    World("a good draft on a graphics card", mixed(0.85), rows(0.03), 0.08),
    World("a very good draft", always(0.96), rows(0.03), 0.08),
    World("the original for the F16 target", mixed(0.85, hard=0.5), rows(0.04), 0.14),
    World("the original, two cores, easy text", always(0.95), TWO_CORES, 0.21),
    World("the original, two cores", mixed(0.85, hard=0.5), TWO_CORES, 0.21),
    World("the weak draft, two cores", mixed(0.3, hard=0.1), TWO_CORES, 0.19),
    World("the weak draft for the F16 target", mixed(0.3, hard=0.1), rows(0.04), 0.13),
    World("heads: less by place", falling(0.85, 0.8), rows(0.08), 0.06),
    World("a draft head, one good guess", falling(0.8, 0.3), rows(0.1), 0.05),
    World("random draft, cheap", always(0.0), rows(0.03), 0.05),
    World("random draft, dear", always(0.0), rows(0.2), 0.4),
    World("the target as its own draft", always(1.0), rows(0.04), 1.0),
    World("a draft as slow as the target, and wrong", always(0.3), rows(0.1), 1.0),
    World("one memory bus", mixed(0.6), rows(0.15), 0.45),
    World("one memory bus, good draft", mixed(0.8), rows(0.12), 0.3),
    World("compute-bound", mixed(0.7), rows(0.75), 0.1, prefill=0.75),
    World("compute-bound, very good draft", always(0.95), rows(0.75), 0.05, prefill=0.75),
    World("hybrid with snapshots", mixed(0.7), rows(0.05), 0.1, cut=1.2),
    World("hybrid with cheap snapshots", mixed(0.8), rows(0.05), 0.1, cut=0.3),
    World("partial offload", mixed(0.75), free_until(4, 0.3), 0.05),
    World("tiles of four", mixed(0.8), stairs(4, 0.5), 0.08),
    World("code, then prose", parts((160, 0.95), (160, 0.2)), rows(0.05), 0.12),
    World("prose, then code", parts((120, 0.15), (120, 0.95)), rows(0.05), 0.12),
    World("drifting", drifting(0.1, 0.95, 300), rows(0.06), 0.12),
    World("noise", mixed(0.75), rows(0.05), 0.1, noise=0.3),
    World("stalls", mixed(0.75), rows(0.05), 0.1, stalls=0.01),
    World("stalls, no gain", mixed(0.3, hard=0.05), rows(0.2), 0.3, stalls=0.01),
    World("a busy machine", mixed(0.85, hard=0.5), rows(0.04), 0.14, noise=0.4, stalls=0.05),
    World("a machine that slows down", mixed(0.8), rows(0.05), 0.1, slowing=lambda at: 1.0 + 0.3 * min(1.0, at / 200)),
    World("a clock that jumps", mixed(0.5), rows(0.1), 0.2, slowing=lambda at: 1.4 if at // 50 % 2 else 1.0),
    World("a draft that says nothing of itself", mixed(0.8), rows(0.04), 0.1, tells=2),
    World("a small draft that is slow", mixed(0.6), rows(0.1), 0.6, size=0.1),
    World("a long prompt", mixed(0.8), rows(0.05), 0.1, prompt=600),
    World("lookup: quoting", always(0.5), rows(0.05), NEVER, lookup=parts((40, 0.97), (30, -1))),
    World("lookup: nothing repeats", always(0.5), rows(0.05), NEVER, lookup=parts((3, 0.1), (20, -1))),
    World("lookup and a model", mixed(0.7), rows(0.05), 0.15, lookup=parts((50, 0.95), (50, 0.1), (60, -1))),
)

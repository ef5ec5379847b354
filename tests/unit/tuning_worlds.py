"""Machines to tune that are cost models: noise, drift, clocks that decay, settings that crash; and other ways to search them."""

import itertools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from tokencli.tune.search import Choice, Dial, Search, TrialFailed, Value

DIALS = (
    Dial("device", ("CPU", "Vulkan0"), apart=True),
    Dial("threads", (1, 2, 4, 8)),
    Dial("draft", ("off", "ngram:4", "ngram:8", "model:2", "model:4", "model:8")),
    Dial("extra_buffers", (True, False)),
    Dial("OMP_WAIT_POLICY", ("active", "passive")),
    Dial("flash_attention", ("auto", "on", "off")),
    Dial("ubatch", (128, 256, 512, 1024)),
)
NO_RELOAD = ("draft",)
START = Choice(
    tuple(
        sorted(
            {
                "device": "CPU", "threads": 4, "draft": "off", "extra_buffers": True, "OMP_WAIT_POLICY": "active",
                "flash_attention": "auto", "ubatch": 512,
            }.items()
        )
    )
)  # fmt: skip
EVERY = tuple(
    Choice(tuple(sorted(zip([dial.name for dial in DIALS], values, strict=True))))
    for values in itertools.product(*(dial.values for dial in DIALS))
)


@dataclass
class Machine:
    """`true` is the cost without noise. Time passes only by measuring. What costs how much differs from seed to seed."""

    seed: int
    noise: float = 0.03
    drift: float = 0.15
    flake: float = 0.01
    seconds: float = 0.0
    measured: int = 0
    loaded: Choice | None = None

    def __post_init__(self) -> None:
        source = random.Random(self.seed)
        self._source = random.Random(f"noise {self.seed}")
        self._factors = {(dial.name, value): source.lognormvariate(0, 0.12) for dial in DIALS for value in dial.values}
        self._cores = source.choice((1, 2, 4, 8))
        self._gpu = source.choice((0.3, 0.7, 1.5, 4.0))
        self._acceptance = {"ngram": source.uniform(0, 0.6), "model": source.uniform(0.3, 0.95)}
        self._draft_price = {"ngram": 0.02, "model": source.uniform(0.05, 0.6)}
        self._check_price = source.uniform(0.02, 0.7)
        self._crashing = {(dial.name, source.choice(dial.values[1:])) for dial in DIALS if source.random() < 0.15}
        self._crashing -= set(START.values)
        self._phase = source.uniform(0, 6)
        self._period = source.uniform(40, 200)

    def true(self, choice: Choice) -> float:
        """Seconds of a sample; infinite where it crashes."""
        values = dict(choice.values)
        if self._crashing & set(choice.values):
            return math.inf
        on_gpu = values["device"] == "Vulkan0"
        cost = self._gpu if on_gpu else 1.0
        threads = int(values["threads"])
        usable = min(threads, self._cores)
        slowed = (1.0 if usable > 1 else 1.35) / usable**0.6 * (1 + 0.15 * max(threads - self._cores, 0))
        cost *= 0.9 + 0.1 * slowed if on_gpu else slowed
        for name in ("flash_attention", "ubatch", "OMP_WAIT_POLICY", "extra_buffers"):
            factor = self._factors[(name, values[name])]
            cost *= factor ** (0.3 if on_gpu and name in ("OMP_WAIT_POLICY", "extra_buffers") else 1)
        return cost * self._drafted(str(values["draft"]), on_gpu, bool(values["extra_buffers"]))

    def _drafted(self, draft: str, on_gpu: bool, extra_buffers: bool) -> float:
        """A pass's time over the tokens it brings; checking several is dearer where a pass is bound by compute."""
        if draft == "off":
            return 1.0
        kind, _, depth = draft.partition(":")
        accepted, count = self._acceptance[kind], int(depth)
        tokens = sum(accepted**each for each in range(count + 1))
        check = self._check_price * (0.4 if on_gpu else 1) * (0.8 if extra_buffers else 1)
        return (1 + count * (check + self._draft_price[kind])) / tokens

    def measure(self, choice: Choice, fresh: bool = False) -> float:
        if fresh or self.loaded is None or self._what_loads(choice) != self._what_loads(self.loaded):
            self.seconds += 0.4
        self.loaded = choice
        self.measured += 1
        true = self.true(choice)
        if math.isinf(true) or self._source.random() < self.flake:
            self.seconds += 1.0
            raise TrialFailed("it crashed")
        drift = 1 + self.drift * math.sin(self._phase + self.seconds / self._period * 2 * math.pi)
        boost = 0.75 if self.seconds < 7 else 1.0
        seconds = true * drift * boost * self._source.lognormvariate(0, self.noise)
        self.seconds += 0.4 * seconds
        return seconds

    @staticmethod
    def _what_loads(choice: Choice) -> tuple[object, ...]:
        return tuple(value for name, value in choice.values if name not in NO_RELOAD)

    def now(self) -> float:
        return self.seconds

    @property
    def best(self) -> float:
        return min(self.true(choice) for choice in EVERY)


def tuned(machine: Machine, budget: float) -> Choice:
    search = Search(DIALS, START, machine.measure, machine.now, budget)
    for _ in search.steps():
        pass
    return search.outcome().best


def one_factor(machine: Machine, budget: float) -> Choice:
    """Every value once beside the start, as often round as the budget allows; the best single change."""
    seen = Seen(machine)
    changes = [START, *(START.put(dial.name, value) for dial in DIALS for value in dial.values)]
    for choice in itertools.cycle(dict.fromkeys(changes)):
        if machine.now() > budget:
            return seen.best
        seen.measure(choice)
    raise AssertionError


def hill_climb(machine: Machine, budget: float) -> Choice:
    """A random change of one dial; taken up where its one measurement is less than the last one taken up."""
    source = random.Random(machine.seed)
    here, cost = START, Seen(machine).measure(START)
    while machine.now() < budget:
        dial = source.choice(DIALS)
        there = here.put(dial.name, source.choice(dial.values))
        found = Seen(machine).measure(there)
        if found < cost:
            here, cost = there, found
    return here


def like_tpe(machine: Machine, budget: float) -> Choice:
    """Tree-structured Parzen estimators of independent dials (Bergstra et al. 2011): values by how often the good quarter has
    them over how often the rest has, the best of 24 drawn; 10 random choices first, the start among them.
    """
    source = random.Random(machine.seed)
    seen = Seen(machine)
    seen.measure(START)
    while machine.now() < budget:
        ranked = sorted(seen.costs, key=seen.mean)
        if len(ranked) < 10:
            seen.measure(source.choice(EVERY))
            continue
        quarter = max(len(ranked) // 4, 2)
        good, bad = _shares(ranked[:quarter]), _shares(ranked[quarter:])
        drawn = [
            {name: source.choices(list(shares), list(shares.values()))[0] for name, shares in good.items()} for _ in range(24)
        ]
        best = max(drawn, key=lambda values: math.prod(good[name][value] / bad[name][value] for name, value in values.items()))
        seen.measure(Choice(tuple(sorted(best.items()))))
    return seen.best


def _shares(among: list[Choice]) -> dict[str, dict[Value, float]]:
    """Of each dial's values, by how often they were taken, once more each."""
    values = [dict(each.values) for each in among]
    return {
        dial.name: {
            value: (1 + sum(each[dial.name] == value for each in values)) / (len(dial.values) + len(among))
            for value in dial.values
        }
        for dial in DIALS
    }


@dataclass
class Seen:
    """What a search without pairs remembers: the mean of what was measured of a choice."""

    machine: Machine
    costs: dict[Choice, list[float]] = field(default_factory=dict)

    def measure(self, choice: Choice) -> float:
        try:
            cost = self.machine.measure(choice)
        except TrialFailed:
            cost = 1e6
        self.costs.setdefault(choice, []).append(cost)
        return cost

    def mean(self, choice: Choice) -> float:
        return statistics.fmean(self.costs[choice])

    @property
    def best(self) -> Choice:
        return min(self.costs, key=self.mean)


SEARCHES: dict[str, Callable[[Machine, float], Choice]] = {
    "ours": tuned,
    "one factor": one_factor,
    "hill climb": hill_climb,
    "like TPE": like_tpe,
}

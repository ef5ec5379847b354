"""What `scripts/bench tune` measures: whether `tokencli tune` finds what an exhaustive sweep finds, also from a bad start.

The grid: threads 1 and 2, micro-batches of 128 and 512, flash attention on and off, no draft, prompt lookup, and a draft model
at up to 2, 4 and 8 tokens: 40 settings of the F16 target. Tune is run as it is, with all its dials, in a folder of its own; the
sweep measures each setting in several rounds, backwards in every second one, and the best of it once more. In the end the two
winners run in turn.
"""

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from make_models import models
from measure import interleaved, ratio

from tokencli.app.fetch import at_hand
from tokencli.app.isolation import started
from tokencli.app.measuring import counted, request_of, text_of
from tokencli.app.trials import Trials
from tokencli.app.tune import Task, Tried, meant, tune
from tokencli.app.world import World, planner_here
from tokencli.core import Note
from tokencli.plan.choose import Wishes
from tokencli.plan.settings import Tuned
from tokencli.tune.dials import Meaning
from tokencli.tune.race import Race
from tokencli.tune.search import TrialFailed
from tokencli.world.tuned import TunedFile

T = TypeVar("T")
BAD = Tuned("CPU", {"threads": 1, "ubatch": 32, "draft_tokens": 8})
CONTEXT, PROMPT = 2048, 64
ANSWER = 16  # tokens: as many as tune takes in its time
REFINED, REFINING = 4, 3  # the best of the sweep, and rounds that they are measured again


@dataclass(slots=True)
class Sweep:
    """Costs of the settings, by round."""

    cells: Sequence[Meaning]
    rounds: list[dict[int, float]] = field(default_factory=list)

    def score(self, index: int) -> float:
        """Mean of its costs, each over the round's median: the machine drifts from round to round."""
        found = [costs[index] / statistics.median(costs.values()) for costs in self.rounds if index in costs]
        return statistics.geometric_mean(found) if found else math.inf

    def ranked(self, among: Iterable[int]) -> list[int]:
        return sorted(among, key=self.score)


def tuning(
    budget: float = 150.0,
    sweep: Annotated[float, typer.Option(help="seconds; two rounds are run in any case")] = 420.0,
    pairs: int = 7,
    bad_start: Annotated[bool, typer.Option(help="tune from 1 thread, ubatch 32 and a bad draft at depth 8, too")] = True,
) -> None:
    """Tune's winner over an exhaustive sweep's, in turns' seconds: the issue asks for 0.95 at least. About 14 minutes."""
    paths = models()
    starts: dict[str, tuple[Path, Tuned | None]] = {"the plan": (paths.original, None)}
    if bad_start:
        starts["a bad start"] = (paths.weak_draft, BAD)
    found = {}
    for name, (draft, begin) in starts.items():
        print(f"tune from {name}, {budget:.0f} s:", flush=True)
        found[name] = draft, _tuned(Task(str(paths.target), _wishes(draft), budget, begin=begin))
    with tempfile.TemporaryDirectory() as folder, _Measured(paths.target, Path(folder)) as here:
        swept = _swept(here, paths.original, sweep)
        for name, (draft, best) in found.items():
            # From the bad start there was no good draft to be found.
            among = range(len(swept.cells)) if draft == paths.original else _without_a_model(swept)
            other = _best_of(here.trials(paths.original), swept, among)
            print(f"the sweep's best: {dict(other.settings)}", flush=True)
            _against(name, here.trials(draft), best, other, pairs)


def grid() -> tuple[Meaning, ...]:
    """In an order in which neighbours share what is loaded."""
    drafts = (
        {"draft": "off"},
        {"draft": "ngram", "draft_tokens": 8},
        *({"draft": "model", "draft_tokens": n} for n in (2, 4, 8)),
    )
    return tuple(
        Meaning("CPU", {"threads": threads, "ubatch": ubatch, "flash_attention": flash, **draft}, {})
        for threads, ubatch, flash, draft in itertools.product((1, 2), (128, 512), ("on", "off"), drafts)
    )


def _wishes(draft: Path) -> Wishes:
    return Wishes(context=CONTEXT, device="cpu", draft=str(draft))


def _world(folder: Path) -> World:
    """Remembers nothing of the user's, and leaves nothing behind."""
    return World(tuned_file=TunedFile(folder / "tuned.toml"), cache=folder / "cache")


def _tuned(task: Task) -> Meaning:
    with tempfile.TemporaryDirectory() as folder:
        result = _followed(tune(task, _world(Path(folder))), _show)
    outcome = result.outcome
    assert outcome
    gain = f"gain {outcome.gain}" if outcome.gain else "no gain told"
    confirmed = "" if outcome.confirmed else ", not confirmed"
    print(f"  {result.changed or 'as planned'}: {gain}{confirmed}, {outcome.trials} trials, {outcome.seconds:.0f} s", flush=True)
    return meant(task, result.matrix, outcome.best)


def _show(event: object) -> None:
    if isinstance(event, Note):
        print(f"  note: {event.text}", flush=True)
    elif isinstance(event, Tried) and event.trial.failure:
        print(f"  failed: {event.changed}: {event.trial.failure}", flush=True)


def _followed(steps: Generator[object, None, T], show: Callable[[object], None]) -> T:
    """What a generator returns in the end."""
    while True:
        try:
            show(next(steps))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class _Measured:
    """Trials of a target on this machine, with any draft."""

    def __init__(self, target: Path, folder: Path) -> None:
        self._target, self._world = target, _world(folder)
        self._engine = started(self._world).engine
        self._trials: dict[Path, Trials] = {}

    def __enter__(self) -> "_Measured":
        return self

    def __exit__(self, *_exception: object) -> None:
        for trials in self._trials.values():
            trials.close()
        self._engine.close()

    def trials(self, draft: Path) -> Trials:
        """With a draft; no other draft's workers stay."""
        for other, trials in self._trials.items():
            if other != draft:
                trials.close()
        if draft not in self._trials:
            target, guesser, _ = _followed(at_hand(str(self._target), _wishes(draft), self._world, from_memory=False), _show)
            planner = planner_here(self._engine, target, guesser, True, None, self._world)
            self._trials[draft] = Trials(planner, _wishes(draft), self._world, "turn")
        found = self._trials[draft]
        text = text_of(PROMPT, counted(found.loaded(grid()[0])))
        found.requests = (request_of(text, ANSWER),)
        return found


def _swept(here: _Measured, draft: Path, seconds: float) -> Sweep:
    trials, found = here.trials(draft), Sweep(grid())
    began, order = time.monotonic(), list(range(len(found.cells)))
    print(f"sweep over {len(order)} settings:", flush=True)
    while len(found.rounds) < 2 or (time.monotonic() - began) * (1 + 1 / len(found.rounds)) < seconds:
        found.rounds.append(_round(trials, found.cells, order))
        order.reverse()
        print(f"  round {len(found.rounds)}, {time.monotonic() - began:.0f} s", flush=True)
    for index in found.ranked(order)[:5]:
        print(f"  {found.score(index):.3f} of a round's median: {dict(found.cells[index].settings)}", flush=True)
    return found


def _round(trials: Trials, cells: Sequence[Meaning], order: Iterable[int]) -> dict[int, float]:
    costs = {}
    for index in order:
        try:
            costs[index] = trials.measure(cells[index], False)
        except TrialFailed as failure:
            print(f"  failed: {dict(cells[index].settings)}: {failure}", flush=True)
    return costs


def _best_of(trials: Trials, sweep: Sweep, among: Iterable[int]) -> Meaning:
    """The best few once more, beside each other alone."""
    race = Race(sweep.ranked(among)[:REFINED], to_the_end=True)
    for _ in range(REFINING):
        race.add(_round(trials, sweep.cells, race.order()))
    assert race.leader is not None
    return sweep.cells[race.leader]


def _without_a_model(sweep: Sweep) -> list[int]:
    return [index for index, cell in enumerate(sweep.cells) if cell.settings["draft"] != "model"]


def _against(name: str, trials: Trials, tuned: Meaning, swept: Meaning, pairs: int) -> None:
    ours, theirs = interleaved(lambda: trials.measure(tuned, False), lambda: trials.measure(swept, False), pairs)
    print(f"tuned from {name} over the sweep's best, as speeds: {ratio(theirs, ours)}", flush=True)
    print(f"  medians {statistics.median(ours):.2f} and {statistics.median(theirs):.2f} s", flush=True)

"""The story of `bench --prompts`: no draft, prompt lookup and a draft model on the user's prompts, kind by kind.

Half of each kind's prompts choose, the other half tells what the choice is worth. What the draft's controller learned is kept:
the next `run` with that draft begins with it. Prints nothing.
"""

import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokencli.app.fetch import at_hand
from tokencli.app.isolation import MODES, started
from tokencli.app.measuring import counted, request_of
from tokencli.app.pace import keep_pace
from tokencli.app.prompts import Prompt, read_prompts
from tokencli.app.remembered import remembering
from tokencli.app.trials import Trials
from tokencli.app.world import World, planner_here
from tokencli.core import Event, Note, Plan
from tokencli.errors import EngineError, Interrupted, UsageError
from tokencli.plan.choose import Wishes
from tokencli.plan.planner import Planner
from tokencli.tune.dials import Meaning
from tokencli.tune.drafts import OFF, Advice, Sample, advice, fastest
from tokencli.tune.intervals import FEWEST
from tokencli.tune.search import TrialFailed

LOOKUP, MODEL = "lookup", "model"
_KINDS = {LOOKUP: "ngram", MODEL: "model"}


@dataclass(frozen=True, slots=True)
class Task:
    """`tokens`: of each answer; `rounds`: how often each prompt held out is answered, None: as often as an interval takes."""

    model: str
    prompts: Path
    wishes: Wishes = field(default_factory=Wishes)
    tokens: int = 128
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """`kept`: arms whose controllers' state was kept."""

    plan: Plan
    task: Task
    arms: tuple[str, ...]
    samples: tuple[Sample, ...] = ()
    kept: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def advice(self) -> tuple[Advice, ...]:
        return advice(self.samples)


Steps = Generator[Event | Sample, None, Report]


def compare_drafts(task: Task, world: World) -> Steps:
    """Measure; an interruption ends it with what was measured. Raises a TokencliError; no worker is left in any case."""
    prompts = read_prompts(task.prompts)
    target, draft, notes = yield from at_hand(task.model, task.wishes, world, from_memory=False)
    world = remembering(target, world)
    begun = started(world, task.wishes)
    yield from (Note(note) for note in (*notes, *begun.notes))
    with begun.engine as engine:  # plans, and holds no model
        extra_buffers = not world.find_verdicts().extra_buffers_crash()
        planner = planner_here(engine, target, draft, extra_buffers, None, world, begun.meter)
        trials = Trials(planner, task.wishes, world, "decode", MODES[begun.mode], deepest=0)
        comparison = _Comparison(task, trials, planner.plan(task.wishes).device or "CPU")
        try:
            return (yield from comparison.run(prompts))
        except TrialFailed as failure:
            raise _refusal(failure) from None
        finally:
            trials.close()


class _Comparison:
    """The arms as they stand, and what they were measured to take."""

    def __init__(self, task: Task, trials: Trials, device: str) -> None:
        self._task, self._trials = task, trials
        tuned = _settings(trials.planner, device)
        drafts = (LOOKUP, MODEL) if trials.planner.draft else (LOOKUP,)
        self._meanings = {arm: Meaning(device, {**tuned, "draft": _KINDS[arm]}, {}) for arm in drafts}
        self._samples: list[Sample] = []

    @property
    def _arms(self) -> tuple[str, ...]:
        return (OFF, *self._meanings)

    def run(self, prompts: Sequence[Prompt]) -> Steps:
        prompts = yield from self._fitting(prompts)
        yield from self._warm_up(prompts[0])
        interrupted = False
        try:
            yield from self._halves(list(enumerate(prompts)))
        except (KeyboardInterrupt, Interrupted):
            if not self._samples:
                raise
            interrupted = True
        arms, kept = self._arms, tuple(arm for arm in self._meanings if self._keep(arm))
        plan = self._trials.planner.plan(self._task.wishes)
        return Report(plan, self._task, arms, tuple(self._samples), kept, interrupted)

    def _halves(self, prompts: Sequence[tuple[int, Prompt]]) -> Iterator[Event | Sample]:
        """Of each kind every second prompt is held out."""
        by_kind: dict[str, list[tuple[int, Prompt]]] = {}
        for each in prompts:
            by_kind.setdefault(each[1].kind, []).append(each)
        choosing = [each for kind in by_kind.values() for each in kind[::2]]
        for number, (index, prompt) in enumerate(choosing):
            yield from self._round(index, prompt, number, False, self._arms)
        for kind, found in by_kind.items():
            held = found[1::2]
            rounds = self._task.rounds or math.ceil(FEWEST / max(len(held), 1))
            arms = tuple(dict.fromkeys(arm for arm in (OFF, fastest(self._samples, kind), fastest(self._samples)) if arm))
            for number, (index, prompt) in itertools.product(range(rounds), held):
                yield from self._round(index, prompt, number, True, arms)

    def _round(self, index: int, prompt: Prompt, number: int, held_out: bool, arms: Sequence[str]) -> Iterator[Event | Sample]:
        """One answer by each arm, backwards in every second round, so that what drifts favours none."""
        for arm in arms if number % 2 else arms[::-1]:
            if arm != OFF and arm not in self._meanings:
                continue  # it broke down meanwhile
            try:
                sample = self._sample(index, prompt, number, held_out, arm)
            except TrialFailed as failure:
                yield self._without(arm, failure)
                continue
            self._samples.append(sample)
            yield sample

    def _sample(self, index: int, prompt: Prompt, number: int, held_out: bool, arm: str) -> Sample:
        stats = self._trials.answer(*self._way(arm), request_of(prompt.text, self._task.tokens)).stats
        if not stats.decode_tokens_per_second:
            raise TrialFailed("the answer was too short to measure")
        seconds = 1 / stats.decode_tokens_per_second
        return Sample(prompt.kind, index, number, arm, held_out, seconds, stats.drafted, stats.accepted)

    def _way(self, arm: str) -> tuple[Meaning, bool]:
        """What is loaded for an arm, and whether it drafts: no draft is a draft that is not asked, so that nothing is loaded."""
        return self._meanings[arm if arm != OFF else next(iter(self._meanings))], arm != OFF

    def _without(self, arm: str, failure: TrialFailed) -> Note:
        """Raises EngineError where nothing is left to compare."""
        self._meanings.pop(arm, None)
        if arm == OFF or not self._meanings:
            raise _refusal(failure) from None
        self._samples = [each for each in self._samples if each.arm != arm]
        return Note(f"{arm} is left out: {failure}")

    def _fitting(self, prompts: Sequence[Prompt]) -> Generator[Event, None, list[Prompt]]:
        """Raises UsageError where none can be used."""
        count = counted(self._trials.loaded(next(iter(self._meanings.values()))))
        context = self._trials.plan(next(iter(self._meanings.values()))).context
        fitting = [each for each in prompts if count(each.text) + self._task.tokens <= context]
        if not fitting:
            raise UsageError(f"no prompt of {self._task.prompts} fits into a context of {context}", "use a larger --context")
        if len(fitting) < len(prompts):
            yield Note(f"{len(prompts) - len(fitting)} prompts do not fit into a context of {context}")
        return fitting

    def _warm_up(self, prompt: Prompt) -> Iterator[Event]:
        """Clocks rise, shaders are compiled; a draft that cannot be loaded is seen here."""
        for arm in tuple(self._meanings):
            try:
                self._sample(0, prompt, 0, False, arm)
            except TrialFailed as failure:
                yield self._without(arm, failure)

    def _keep(self, arm: str) -> bool:
        meaning = self._meanings[arm]
        pace = self._trials.pace(meaning)
        return pace is not None and keep_pace(self._trials.plan(meaning), self._trials.world, pace)


def _refusal(failure: TrialFailed) -> EngineError:
    return EngineError(f"drafts cannot be compared: {failure}", "tokencli run shows what fails")


def _settings(planner: Planner, device: str) -> dict[str, Any]:
    """What was tuned for the device, so that drafts are compared as a run would have them."""
    tuned = planner.tuned
    return dict(tuned.values) if tuned and tuned.device == device else {}

"""One trial of `tune`: a choice of settings planned, loaded in a worker of its own, and its answers timed. Prints nothing.

Some workers stay where the memory holds them, so that a race's later rounds need no new load; a draft's depth needs none at all.
What was learned of a draft is handed on to the next worker that holds the same, as it is from run to run.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokencli.app.measuring import Answer, per_token, timed
from tokencli.app.world import World
from tokencli.core import Loaded, Plan, Request, Stats
from tokencli.engine.client import Engine
from tokencli.errors import DoesNotFit, EngineError, UsageError
from tokencli.plan.choose import Wishes
from tokencli.plan.planner import Planner
from tokencli.plan.settings import Tuned
from tokencli.tune.dials import DEEPEST, Meaning
from tokencli.tune.search import TrialFailed
from tokencli.world.energy import Meter

Goal = Literal["decode", "ttft", "turn"]
_Key = tuple[str, tuple[str | None, ...] | None, tuple[tuple[str, str], ...]]  # what needs a load of its own
_SLOWEST = 8.0  # times the start: a hang, or nothing to wait for
_SLACK = 0.9  # of the memory: one worker more may take so much of what is free
_TO_LEARN = 64  # tokens in which a draft's controller has found its depth
_MOST_WORKERS = 4  # that stay: a race of more values than that is rare


def _turn(stats: Stats) -> float | None:
    if stats.ttft_seconds is None or not stats.decode_tokens_per_second:
        return None
    return stats.ttft_seconds + (stats.tokens - 1) / stats.decode_tokens_per_second


COSTS: dict[Goal, Callable[[Stats], float | None]] = {
    "decode": lambda stats: 1 / stats.decode_tokens_per_second if stats.decode_tokens_per_second else None,
    "ttft": lambda stats: stats.ttft_seconds,
    "turn": _turn,
}


@dataclass(frozen=True, slots=True)
class Told:
    """One answer, and the joules per token after the first; None where nothing tells."""

    stats: Stats
    joules_per_token: float | None


@dataclass(slots=True)
class _Running:
    """A worker, the plan it holds, and what tells the two from others."""

    engine: Engine
    plan: Plan
    key: _Key
    loaded: Loaded


@dataclass(slots=True)
class Trials:
    """Measures choices for a search. Close it in the end: no worker stays."""

    planner: Planner
    wishes: Wishes
    world: World
    goal: Goal
    environment: Mapping[str, str] = field(default_factory=dict)  # what all workers need here
    requests: tuple[Request, ...] = ()
    drifted: dict[_Key, bool] = field(default_factory=dict)  # whether the text is another than at the start
    longest: float | None = None  # seconds of the start's load and answers, the limit of others
    load_seconds: float | None = None
    least_seconds: float = 20.0  # that a load or an answer is given
    paces: dict[_Key, Mapping[str, Any]] = field(default_factory=dict)
    told: dict[_Key, list[Told]] = field(default_factory=dict)  # of the choices' answers, with the limit of their draft
    deepest: int = DEEPEST  # that a draft is loaded for, which each request bounds; a plan's own depth where that is more
    _running: list[_Running] = field(default_factory=list)
    _texts: str | None = None

    def plan(self, meaning: Meaning) -> Plan:
        """The plan with a choice's settings. Raises TrialFailed where there is none."""
        kind = meaning.settings.get("draft")
        wishes = self.wishes if kind is None else dataclasses.replace(self.wishes, draft=None)
        draft = self.planner.draft if kind in (None, "model") else None
        try:
            return dataclasses.replace(self.planner, tuned=Tuned(meaning.device, meaning.settings), draft=draft).plan(wishes)
        except (DoesNotFit, UsageError) as error:
            raise TrialFailed(error.what) from None

    def measure(self, meaning: Meaning, fresh: bool) -> float:
        """Seconds of what the goal counts, over all requests. Raises TrialFailed; Interrupted."""
        plan = self.plan(meaning)
        try:
            running = self._held(plan, meaning.environment, fresh)
            return self._timed(running, plan)
        except (EngineError, DoesNotFit) as error:
            self._drop(plan, meaning.environment)
            raise TrialFailed(error.what) from None

    def answer(self, meaning: Meaning, drafts: bool, request: Request) -> Answer:
        """One answer by a choice that has a draft, or by the same without asking it. Raises TrialFailed; Interrupted."""
        plan = self.plan(meaning)
        try:
            running = self._held(plan, meaning.environment, False)
            if drafts and not running.loaded.draft:
                raise TrialFailed("; ".join(running.loaded.notes) or "there is no draft")
            return self._answer(running, plan if drafts else dataclasses.replace(plan, draft=None), request)
        except (EngineError, DoesNotFit) as error:
            self._drop(plan, meaning.environment)
            raise TrialFailed(error.what) from None

    def pace(self, meaning: Meaning) -> Mapping[str, Any] | None:
        """What was learned of a choice's draft."""
        return self.paces.get(_key(self.plan(meaning), meaning.environment))

    def told_of(self, meaning: Meaning) -> list[Told]:
        """All that a choice's answers told."""
        plan = self.plan(meaning)
        return self.told.get(_with_depth(plan, _key(plan, meaning.environment)), [])

    def begin(self, requests: tuple[Request, ...], longest: float) -> None:
        """What is measured from now on; the texts of what runs already, the start, are what others are compared with."""
        self.requests, self.longest = requests, longest
        for each in self._running:
            self._warmed_up(each, each.plan)

    def loaded(self, meaning: Meaning) -> Engine:
        """A worker that holds the choice, to ask it things. Raises TokencliError."""
        return self._held(self.plan(meaning), meaning.environment, False).engine

    def close(self) -> None:
        while self._running:
            self._running.pop().engine.close()

    # inside

    def _held(self, plan: Plan, environment: Mapping[str, str], fresh: bool) -> _Running:
        key = _key(plan, environment)
        found = next((each for each in self._running if each.key == key), None)
        if found and not fresh:
            self._running.remove(found)
            self._running.append(found)
            return found
        self._drop(plan, environment)
        while self._running and not self._holds_another():
            self._running.pop(0).engine.close()
        running = self._start(plan, environment, key)
        self._running.append(running)
        if self.requests:
            self._warmed_up(running, plan)
        return running

    def _start(self, plan: Plan, environment: Mapping[str, str], key: _Key) -> _Running:
        engine = self.world.engine({**self.environment, **environment})
        try:
            limit = None if self.load_seconds is None else max(_SLOWEST * self.load_seconds, self.least_seconds)
            *_, loaded = engine.load(self._as_loaded(plan), limit, self.paces.get(key))
        except BaseException:
            engine.close()
            raise
        assert isinstance(loaded, Loaded)
        if self.load_seconds is None:
            self.load_seconds = loaded.load_seconds
        return _Running(engine, plan, key, loaded)

    def _as_loaded(self, plan: Plan) -> Plan:
        if plan.draft is None:
            return plan
        depth = max(self.deepest, plan.draft.max_tokens)
        return dataclasses.replace(plan, draft=dataclasses.replace(plan.draft, max_tokens=depth))

    def _warmed_up(self, running: _Running, plan: Plan) -> None:
        """All answers once, before any counts: shaders are compiled (report A7-03), and the texts are compared. A draft whose
        depth adapts and that nothing is known of learns for some tokens more: a run begins with what the last one learned.
        """
        learns = plan.draft is not None and plan.draft.adaptive and running.key not in self.paces
        answers = [self._answer(running, plan, request) for request in self.requests]
        texts = [each.text for each in answers]
        tokens = once = sum(each.stats.tokens for each in answers)
        while learns and once and tokens < _TO_LEARN:
            tokens += once
            for request in self.requests:
                self._answer(running, plan, request)
        found = hashlib.sha256("\0".join(texts).encode()).hexdigest()
        self._texts = self._texts or found
        self.drifted[running.key] = found != self._texts

    def has_drifted(self, meaning: Meaning) -> bool:
        """Whether greedy answers differ from the start's."""
        return self.drifted.get(_key(self.plan(meaning), meaning.environment), False)

    def _holds_another(self) -> bool:
        """Whether the memory that is free now holds one more worker like the one used longest ago; not where that has died."""
        if len(self._running) >= _MOST_WORKERS:
            return False
        try:
            machine = self.world.read_machine(self._running[0].engine.devices())
        except EngineError:
            return False
        free = {each.id: each.free_bytes for each in machine.devices} | {"CPU": machine.ram_available_bytes}
        places = self._running[0].loaded.devices
        return all(place.total < _SLACK * free.get(place.id, 0) for place in places)

    def _timed(self, running: _Running, plan: Plan) -> float:
        answers = [self._answer(running, plan, request) for request in self.requests]
        self.told.setdefault(_with_depth(plan, running.key), []).extend(
            Told(each.stats, per_token(each.joules, each.stats)) for each in answers
        )
        costs = [COSTS[self.goal](each.stats) for each in answers]
        found = [cost for cost in costs if cost is not None]
        if len(found) < len(costs):
            raise TrialFailed("the answer was too short to measure")
        return sum(found)

    def _answer(self, running: _Running, plan: Plan, request: Request) -> Answer:
        limit = None if self.longest is None else max(_SLOWEST * self.longest, self.least_seconds)
        wanted = dataclasses.replace(request, max_draft=plan.draft.max_tokens if plan.draft else 0)
        answer = timed(running.engine, wanted, limit, Meter(self.world.energy_sensors(), self.world.now))
        if answer.pace is not None:
            self.paces[running.key] = answer.pace
        if answer.late:
            raise TrialFailed(f"an answer took more than {limit:.0f} s")
        return answer

    def _drop(self, plan: Plan, environment: Mapping[str, str]) -> None:
        key = _key(plan, environment)
        for each in [each for each in self._running if each.key == key]:
            self._running.remove(each)
            each.engine.close()


def _with_depth(plan: Plan, key: _Key) -> _Key:
    return (*key[:2], (*key[2], ("draft", str(plan.draft.max_tokens if plan.draft else 0))))


def _key(plan: Plan, environment: Mapping[str, str]) -> _Key:
    draft = (plan.draft.kind, plan.draft.file, plan.draft.device) if plan.draft else None
    batch_threads = None if plan.batch_threads == plan.threads else plan.batch_threads
    bare = dataclasses.replace(
        plan, batch_threads=batch_threads, draft=None, devices=(), origins={}, notes=(), predicted=type(plan.predicted)()
    )
    return repr(bare), draft, tuple(sorted(environment.items()))

"""The story of `tune`: from the plan as it is to the fastest settings that can be told from it, and what is remembered of them.

Prints nothing. The search itself is pure (tune/search.py); trials run in workers (app/trials.py).
"""

import contextlib
import dataclasses
import datetime
import statistics
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from tokencli.app.calibrated import CALIBRATION
from tokencli.app.calibrating import Learned, Own, calibrate
from tokencli.app.fetch import at_hand
from tokencli.app.isolation import MODES, started
from tokencli.app.measuring import counted, request_of, text_of, timed
from tokencli.app.prompts import read_prompts
from tokencli.app.remembered import identity_of, this_computer
from tokencli.app.trials import COSTS, Goal, Trials
from tokencli.app.world import World, planner_here, read_model
from tokencli.core import Event, Note, Plan, Request
from tokencli.engine.client import Engine
from tokencli.errors import EngineError, Interrupted, ModelUnavailable, NotSaved, TokencliError, UsageError
from tokencli.plan.choose import Wishes, is_software
from tokencli.plan.planner import Planner
from tokencli.plan.settings import Tuned
from tokencli.plan.share import bandwidth_share
from tokencli.plan.sizes import ModelFile
from tokencli.tune.dials import Allowed, Meaning, dials, meaning
from tokencli.tune.search import Choice, Dial, Outcome, Search, Trial, TrialFailed
from tokencli.world import settings, tuned
from tokencli.world.tuned import Entry

_SHORTEST_ANSWER, _LONGEST_ANSWER = 16, 128
_SHORTEST_PROMPT, _LONGEST_PROMPT = 48, 512
_TRIALS_WANTED = 120  # in a budget: what a search over a usual number of dials takes
_MOST_PROMPTS = 4
_LEAST_TO_CALIBRATE = 30.0  # seconds of a budget: beside a shorter one it would take too long


@dataclass(frozen=True, slots=True)
class Task:
    """One `tune`. `prompts`: the user's own, a file or a folder of them; `loss`: also try what changes answers; `begin`: settings
    to start from in place of the planner's own.
    """

    model: str
    wishes: Wishes = field(default_factory=Wishes)
    budget: float = 120.0
    goal: Goal = "turn"
    prompts: Path | None = None
    loss: bool = False
    dry_run: bool = False
    begin: Tuned | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """What will be tried, before anything is measured."""

    plan: Plan
    dials: tuple[Dial, ...]
    start: Choice
    budget: float


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial as it came, and how far the budget is spent."""

    trial: Trial
    changed: dict[str, object]  # of the choice, against the start
    seconds: float


@dataclass(frozen=True, slots=True)
class Spent:
    """Medians over a choice's answers: share of the measured bandwidth, joules per token and what told them. None: unknown."""

    bandwidth_share: float | None = None
    joules_per_token: float | None = None
    energy: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """`before` and `after` are the plans; `outcome` what was measured; `entry` what is remembered: what was confirmed, and
    where the user broke it off what several rounds told apart by then.
    """

    task: Task
    matrix: Matrix
    before: Plan
    after: Plan
    changed: dict[str, object]
    outcome: Outcome | None
    entry: Entry | None
    drifted: bool = False
    interrupted: bool = False
    calibrations: tuple[Learned, ...] = ()
    spent_before: Spent = Spent()
    spent_after: Spent = Spent()


Steps = Generator[Event | Matrix | Tried, None, Result]


def tune(task: Task, world: World) -> Steps:
    """Measure for the budget's seconds, and remember the result. Raises a TokencliError; no worker is left in any case."""
    target, draft, notes = yield from at_hand(task.model, task.wishes, world, from_memory=False)
    yield from (Note(note) for note in notes)
    begun = started(world, task.wishes)
    yield from (Note(note) for note in begun.notes)
    with begun.engine as engine:  # plans, and holds no model
        extra_buffers = not world.find_verdicts().extra_buffers_crash()
        planner = planner_here(engine, target, draft, extra_buffers, None, world, begun.meter)
        before = dataclasses.replace(planner, tuned=task.begin).plan(task.wishes)
        yield from (Note(note) for note in before.notes)
        found, start = dials(before, planner.machine, _allowed(task, planner))
        matrix = Matrix(before, found, start, task.budget)
        yield matrix
        if task.dry_run:
            return Result(task, matrix, before, before, {}, None, None)
        trials = Trials(planner, task.wishes, world, task.goal, MODES[begun.mode])
        try:
            result = yield from _tuned(task, target, trials, matrix)
            return (yield from _calibrated(result, trials))
        finally:
            trials.close()


def meant(task: Task, matrix: Matrix, choice: Choice) -> Meaning:
    """A choice as the planner and the worker take it, with what the start itself has of its own."""
    found = meaning(choice, matrix.start, matrix.plan.device or "CPU")
    begun = dict(task.begin.values) if task.begin else {}
    return dataclasses.replace(found, settings={**begun, **found.settings})


def forget(model: str, world: World) -> int:
    """Take out what is remembered of a model, by its bytes or by the name it was tuned under, or of the computer's speed; how
    many entries.
    """
    if model == CALIBRATION:
        return world.calibrations.forget()
    identity = ""
    with contextlib.suppress(ModelUnavailable):  # deleted since: the name is what is left of it
        identity = identity_of(read_model(model, world))
    return world.tuned_file.forget(lambda each: each.model == model or (bool(identity) and each.identity == identity))


def listed(world: World) -> tuple[list[tuple[Entry, str | None]], list[str]]:
    """All entries, each with why it does not hold here now, and lines for what cannot be read."""
    entries, faults = world.tuned_file.entries()
    build, computer = tuned.this_build(), this_computer(world)
    return [(each, each.stale(build, computer)) for each in entries], faults


# inside


def _calibrated(result: Result, trials: Trials) -> Steps:
    """What else is measured: this computer, with the threads that untuned models get here, and with those found."""
    task, matrix, world = result.task, result.matrix, trials.world
    if result.interrupted or result.outcome is None or task.budget < _LEAST_TO_CALIBRATE:
        return result
    place = matrix.plan.device or "CPU"
    ways = {(each.device, each.settings.get("threads")): each
            for each in (meaning(choice, matrix.start, place) for choice in (result.outcome.best, matrix.start))}  # fmt: skip

    def held(way: Meaning) -> Own:
        environment = {**trials.environment, **way.environment}
        return Own(lambda: trials.loaded(way), trials.plan(way), trials.planner.target.info, environment)

    speeds = settings.read_speeds(world.data)
    try:
        found = yield from calibrate([held(each) for each in ways.values()], trials.planner.machine, speeds, task.budget, world)
    except (KeyboardInterrupt, Interrupted):
        return dataclasses.replace(result, interrupted=True)
    except (TokencliError, TrialFailed, OSError) as error:
        yield Note(f"predictions are not calibrated: {error}")
        return result
    return dataclasses.replace(result, calibrations=found)


def _allowed(task: Task, planner: Planner) -> Allowed:
    wishes = task.wishes
    fixed = {name for name in ("threads", "device", "kv_type", "draft_tokens") if getattr(wishes, name) is not None}
    if wishes.threads is not None:
        fixed.add("batch_threads")
    if wishes.gpu_layers is not None or wishes.cpu_moe is not None:
        fixed |= {"device", "gpu_layers", "cpu_moe"}
    if wishes.draft == "off" or wishes.draft_tokens is not None:
        fixed.add("draft")
    gpus = [each.id for each in planner.machine.devices if each.kind in ("gpu", "integrated") and not is_software(each)]
    drafts = ("ngram", "model") if planner.draft else ("ngram",)
    return Allowed(frozenset(fixed), drafts, (*gpus, "CPU"), task.loss)


def _tuned(task: Task, target: ModelFile, trials: Trials, matrix: Matrix) -> Steps:
    world, before, start = trials.world, matrix.plan, matrix.start
    engine = trials.loaded(meant(task, matrix, start))
    requests = _own_requests(task, engine, before) if task.prompts else None
    requests, cost = _sized(requests, task, engine, before)
    trials.begin(requests, cost)
    yield Note(_what_is_measured(task, requests, engine))
    began, interrupted = world.now(), False
    search = Search(
        matrix.dials,
        start,
        lambda choice, fresh: trials.measure(meant(task, matrix, choice), fresh),
        world.now,
        task.budget,
    )
    try:
        for trial in search.steps():
            yield Tried(trial, dict(trial.choice.beside(start)), world.now() - began)
    except (KeyboardInterrupt, Interrupted):
        interrupted = True
    except TrialFailed as failure:
        raise EngineError(f"{task.model} cannot be tuned: {failure}", "tokencli run shows what fails") from None
    outcome = search.outcome().broken_off() if interrupted else search.outcome()
    return _result(task, target, trials, matrix, outcome, interrupted)


def _result(task: Task, target: ModelFile, trials: Trials, matrix: Matrix, outcome: Outcome, interrupted: bool) -> Result:
    best = meant(task, matrix, outcome.best)
    entry = None
    if outcome.confirmed or (interrupted and outcome.best != matrix.start):
        entry = _entry(task, target, trials, outcome, best)
        try:
            trials.world.tuned_file.put(entry)
        except OSError as error:
            raise NotSaved(f"the result cannot be saved: {error}", f"check {trials.world.tuned_file.file.parent}") from None
    return Result(
        task=task,
        matrix=matrix,
        before=matrix.plan,
        after=trials.plan(best),
        changed=dict(outcome.best.beside(matrix.start)),
        outcome=outcome,
        entry=entry,
        drifted=trials.has_drifted(best),
        interrupted=interrupted,
        spent_before=_spent(trials, meant(task, matrix, matrix.start)),
        spent_after=_spent(trials, best),
    )


def _spent(trials: Trials, choice: Meaning) -> Spent:
    told, plan, world = trials.told_of(choice), trials.plan(choice), trials.world
    bandwidth = trials.planner.machine.memory_bandwidth
    info = trials.planner.target.info
    shares = [share for each in told if (share := bandwidth_share(plan, info, each.stats, bandwidth)) is not None]
    joules = [each.joules_per_token for each in told if each.joules_per_token is not None]
    return Spent(
        bandwidth_share=statistics.median(shares) if shares else None,
        joules_per_token=statistics.median(joules) if joules else None,
        energy=next((each.source for each in world.energy_sensors()), None) if joules else None,
    )


def _entry(task: Task, target: ModelFile, trials: Trials, outcome: Outcome, best: Meaning) -> Entry:
    machine = trials.planner.machine
    settings = dict(best.settings)
    if settings.get("draft") == "model" and trials.planner.draft:
        settings["draft"] = trials.planner.draft.model.name
    return Entry(
        model=task.model,
        identity=identity_of(target),
        build=tuned.this_build(),
        computer=this_computer(trials.world),
        devices=tuned.stamp(machine.devices),
        device=best.device,
        date=datetime.date.today().isoformat(),
        goal=task.goal,
        context=trials.plan(best).context,
        confirmed=outcome.confirmed,
        gain=(outcome.gain.median, outcome.gain.low, outcome.gain.high) if outcome.gain else None,
        settings=settings,
        environment=best.environment,
    )


def _own_requests(task: Task, engine: Engine, plan: Plan) -> tuple[Request, ...]:
    """From the user's prompts, those that fit. Raises UsageError where none can be used."""
    assert task.prompts
    texts = [each.text for each in read_prompts(task.prompts)]
    fitting = [text for text in texts if counted(engine)(text) + _LONGEST_ANSWER <= plan.context]
    if not fitting:
        raise UsageError(f"no prompt of {task.prompts} fits into a context of {plan.context}", "use a larger --context")
    step = max(len(fitting) // _MOST_PROMPTS, 1)
    return tuple(request_of(text, _SHORTEST_ANSWER) for text in fitting[::step][:_MOST_PROMPTS])


def _sized(requests: tuple[Request, ...] | None, task: Task, engine: Engine, plan: Plan) -> tuple[tuple[Request, ...], float]:
    """Answers, and where there are no prompts a prompt, as long as so many trials allow; and the seconds of all of them.

    Prompts are as deep as the context that was asked for, if that can be measured in the time.
    """
    first = request_of(text_of(_SHORTEST_PROMPT, counted(engine)), _SHORTEST_ANSWER)
    timed(engine, first)
    stats = timed(engine, first).stats
    room = task.budget / _TRIALS_WANTED / (len(requests) if requests else 1)
    tokens = _between(_SHORTEST_ANSWER, int(room / 2 * (stats.decode_tokens_per_second or 0)), _LONGEST_ANSWER)
    if requests is None:
        deepest = plan.context - _LONGEST_ANSWER if task.wishes.context else min(_LONGEST_PROMPT, plan.context // 2)
        length = _between(_SHORTEST_PROMPT, int(room / 2 * (stats.prefill_tokens_per_second or 0)), max(deepest, 1))
        requests = (request_of(text_of(length, counted(engine)), tokens),)
    requests = tuple(dataclasses.replace(each, max_tokens=tokens) for each in requests)
    answers = [timed(engine, each).stats for each in requests]
    return requests, sum(COSTS["turn"](each) or 0.0 for each in answers)


def _between(least: int, wanted: int, most: int) -> int:
    return max(min(wanted, most), min(least, most))


def _what_is_measured(task: Task, requests: tuple[Request, ...], engine: Engine) -> str:
    counts = ", ".join(str(engine.count(each)) for each in requests)
    whose = "your own" if task.prompts else "made-up sentences"
    return f"measured with prompts of {counts} tokens ({whose}) and answers of {requests[0].max_tokens}: {_GOALS[task.goal]}"


_GOALS: dict[Goal, str] = {
    "decode": "seconds per token after the first",
    "ttft": "seconds to the first token",
    "turn": "seconds of a whole answer",
}

"""The story of `bench`: a model loaded as `run` would load it, and answers of one length measured in turn. Prints nothing."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace

from tokencli.app.bench_compare import Earlier, refuse_another
from tokencli.app.measuring import counted, request_of, text_of, timed
from tokencli.app.opened import Opened, opened
from tokencli.app.remembered import this_computer
from tokencli.app.world import World
from tokencli.core import Event, Note, Plan, Request, Stats
from tokencli.engine.client import Engine
from tokencli.errors import DoesNotFit, Interrupted
from tokencli.plan.choose import Wishes
from tokencli.tune.intervals import Interval, Ratio, interval, ratio
from tokencli.world.tuned import this_build

PLAIN, DRAFTED = "plain", "draft"


@dataclass(frozen=True, slots=True)
class Task:
    """One `bench`: which model, how long a prompt and an answer, how often."""

    model: str
    wishes: Wishes = field(default_factory=Wishes)
    prompt_tokens: int = 512
    tokens: int = 128
    runs: int = 5
    earlier: Earlier | None = None  # what it will be compared with: refused before anything is measured, unless `anyway`
    anyway: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """One answer measured: `arm` is PLAIN or DRAFTED."""

    arm: str
    number: int
    stats: Stats


@dataclass(frozen=True, slots=True)
class Report:
    """All answers measured, in the order they came; not all that were asked for where `interrupted`."""

    plan: Plan
    task: Task
    prompt_tokens: int
    computer: str
    build: str
    ran: tuple[Ran, ...] = ()
    interrupted: bool = False

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(arm for arm in (PLAIN, DRAFTED) if any(each.arm == arm for each in self.ran))

    def figure(self, arm: str, value: Callable[[Stats], float | None]) -> Interval | None:
        """Median and interval of a figure over an arm's answers; None where there is none."""
        found = [number for each in self.ran if each.arm == arm and (number := value(each.stats)) is not None]
        return interval(found) if found else None

    @property
    def speedup(self) -> Ratio | None:
        """Decode speed with the draft over that without, in interleaved pairs; None where there was no pair."""
        by_arm = ([each.stats.decode_tokens_per_second for each in self.ran if each.arm == arm] for arm in (DRAFTED, PLAIN))
        pairs = [(with_draft, without) for with_draft, without in zip(*by_arm, strict=False) if with_draft and without]
        return ratio(*zip(*pairs, strict=True)) if pairs else None


FIGURES: dict[str, Callable[[Stats], float | None]] = {
    "ttft_seconds": lambda stats: stats.ttft_seconds,
    "prefill_tokens_per_second": lambda stats: stats.prefill_tokens_per_second,
    "decode_tokens_per_second": lambda stats: stats.decode_tokens_per_second,
    "itl_ms_p50": lambda stats: stats.itl_ms.p50 if stats.itl_ms else None,
    "itl_ms_p90": lambda stats: stats.itl_ms.p90 if stats.itl_ms else None,
    "itl_ms_p99": lambda stats: stats.itl_ms.p99 if stats.itl_ms else None,
    "tokens_per_emission": lambda stats: stats.tokens_per_emission,
    "acceptance": lambda stats: stats.acceptance,
}


def bench(task: Task, world: World) -> Generator[Event | Ran, None, Report]:
    """Load, warm up, then measure answer by answer; an interruption ends it with what was measured.

    Raises a TokencliError; DoesNotFit where the prompt and the answer exceed the context, UsageError where an earlier report is
    of something else.
    """
    result = yield from opened(task.model, task.wishes, world)
    with result.engine as engine:
        request = _request(task, engine, result.plan)
        length = engine.count(request)
        if length != task.prompt_tokens:
            yield Note(
                f"the prompt has {length} tokens: no text of this model's template and vocabulary has {task.prompt_tokens}"
            )
        report = Report(result.plan, task, length, this_computer(world), this_build())
        if task.earlier and not task.anyway:
            refuse_another(task.earlier, report)
        ran: list[Ran] = []
        try:
            for each in _measured(task, result, request):
                ran.append(each)
                yield each
        except (KeyboardInterrupt, Interrupted):
            if not ran:
                raise
        return replace(report, ran=tuple(ran), interrupted=len(ran) < task.runs * len(_arms(result.plan)))


def _request(task: Task, engine: Engine, plan: Plan) -> Request:
    needed = task.prompt_tokens + task.tokens
    if needed > plan.context:
        raise DoesNotFit(f"prompt and answer have {needed} tokens, the context holds {plan.context}", f"use --context {needed}")
    return request_of(text_of(task.prompt_tokens, counted(engine)), task.tokens)


def _arms(plan: Plan) -> tuple[tuple[str, int | None], ...]:
    """The arms and how much they may draft at once."""
    return ((PLAIN, 0), (DRAFTED, None)) if plan.draft else ((PLAIN, 0),)


def _measured(task: Task, result: Opened, request: Request) -> Iterable[Ran]:
    """The order is swapped from pair to pair, so that a machine that slows down favours none. Raises Interrupted."""
    arms = _arms(result.plan)
    for number in range(task.runs + 1):
        for arm, most in arms if number % 2 else arms[::-1]:
            answer = timed(result.engine, replace(request, max_draft=most))
            if number:  # the first round is the warm-up: clocks rise, shaders are compiled
                yield Ran(arm, number, answer.stats)

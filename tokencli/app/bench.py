"""The story of `bench`: a model loaded as `run` would load it, answers of one length measured in turn, and llama-bench's tests.

Prints nothing.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokencli.app.bench_compare import Earlier, refuse_another
from tokencli.app.measuring import Answer, counted, per_token, request_of, text_of, timed
from tokencli.app.opened import Opened, opened
from tokencli.app.remembered import this_computer
from tokencli.app.throughput import USUAL_DEPTHS, Passed, Throughput, measured, throughputs
from tokencli.app.world import World
from tokencli.core import Event, ModelInfo, Note, Plan, Request, Stats
from tokencli.engine.client import Engine
from tokencli.errors import DoesNotFit, Interrupted
from tokencli.plan.choose import Wishes
from tokencli.plan.model_info import model_info
from tokencli.plan.share import bandwidth_share
from tokencli.tune.intervals import Interval, Ratio, interval, ratio
from tokencli.world import gguf_file
from tokencli.world.energy import Meter
from tokencli.world.tuned import this_build

PLAIN, DRAFTED = "plain", "draft"


@dataclass(frozen=True, slots=True)
class Task:
    """One `bench`: which model, how long a prompt and an answer, how often; `depths` None: the usual ones that fit."""

    model: str
    wishes: Wishes = field(default_factory=Wishes)
    prompt_tokens: int = 512
    tokens: int = 128
    runs: int = 5
    depths: tuple[int, ...] | None = None
    earlier: Earlier | None = None  # what it will be compared with: refused before anything is measured, unless `anyway`
    anyway: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """One answer measured: `arm` is PLAIN or DRAFTED. `joules_per_token` after the first, None where nothing tells."""

    arm: str
    number: int
    stats: Stats
    joules_per_token: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured, in the order it came; not all that was asked for where `interrupted`. `energy`: what told it."""

    plan: Plan
    task: Task
    prompt_tokens: int
    computer: str
    build: str
    ran: tuple[Ran, ...] = ()
    interrupted: bool = False
    passed: tuple[Passed, ...] = ()
    energy: str | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(arm for arm in (PLAIN, DRAFTED) if any(each.arm == arm for each in self.ran))

    def figure(self, arm: str, value: "Figure") -> Interval | None:
        """Median and interval of a figure over an arm's answers; None where there is none."""
        found = [number for each in self.ran if each.arm == arm and (number := value(each)) is not None]
        return interval(found) if found else None

    @property
    def throughput(self) -> dict[Throughput, Interval]:
        """Tokens per second by test."""
        speeds: dict[Throughput, list[float]] = {}
        for each in self.passed:
            speeds.setdefault(each.test, []).append(each.tokens_per_second)
        return {test: interval(found) for test, found in speeds.items()}

    @property
    def speedup(self) -> Ratio | None:
        """Decode speed with the draft over that without, in interleaved pairs; None where there was no pair."""
        by_arm = ([each.stats.decode_tokens_per_second for each in self.ran if each.arm == arm] for arm in (DRAFTED, PLAIN))
        pairs = [(with_draft, without) for with_draft, without in zip(*by_arm, strict=False) if with_draft and without]
        return ratio(*zip(*pairs, strict=True)) if pairs else None


Figure = Callable[[Ran], float | None]

FIGURES: dict[str, Figure] = {
    "ttft_seconds": lambda ran: ran.stats.ttft_seconds,
    "prefill_tokens_per_second": lambda ran: ran.stats.prefill_tokens_per_second,
    "decode_tokens_per_second": lambda ran: ran.stats.decode_tokens_per_second,
    "itl_ms_p50": lambda ran: ran.stats.itl_ms.p50 if ran.stats.itl_ms else None,
    "itl_ms_p90": lambda ran: ran.stats.itl_ms.p90 if ran.stats.itl_ms else None,
    "itl_ms_p99": lambda ran: ran.stats.itl_ms.p99 if ran.stats.itl_ms else None,
    "tokens_per_emission": lambda ran: ran.stats.tokens_per_emission,
    "acceptance": lambda ran: ran.stats.acceptance,
    "bandwidth_share": lambda ran: ran.stats.bandwidth_share,
    "joules_per_token": lambda ran: ran.joules_per_token,
}


def bench(task: Task, world: World) -> Generator[Event | Ran | Passed, None, Report]:
    """Load, warm up, then measure one by one; an interruption ends it with what was measured.

    Raises a TokencliError; DoesNotFit where the prompt and the answer exceed the context, UsageError where an earlier report is
    of something else.
    """
    result = yield from opened(task.model, task.wishes, world)
    with result.engine as engine:
        tests = _tests(task, result.plan.context)
        request = _request(task, engine, result.plan)
        length = engine.count(request)
        if length != task.prompt_tokens:
            yield Note(
                f"the prompt has {length} tokens: no text of this model's template and vocabulary has {task.prompt_tokens}"
            )
        meters = _Meters(result, world)
        report = Report(result.plan, task, length, this_computer(world), this_build(), energy=meters.source)
        if task.earlier and not task.anyway:
            refuse_another(task.earlier, report)
        found: list[Ran | Passed] = []
        try:
            for each in _measured(task, result, request, meters, tests):
                found.append(each)
                yield each
        except (KeyboardInterrupt, Interrupted):
            if not found:
                raise
        ran = tuple(each for each in found if isinstance(each, Ran))
        passed = tuple(each for each in found if isinstance(each, Passed))
        wanted = task.runs * (len(_arms(result.plan)) + len(tests))
        return replace(report, ran=ran, passed=passed, interrupted=len(found) < wanted)


def _measured(
    task: Task, result: Opened, request: Request, meters: "_Meters", tests: tuple[Throughput, ...]
) -> Iterator[Ran | Passed]:
    """Raises Interrupted."""
    yield from _answers(task, result, request, meters)
    yield from measured(result.engine, tests, task.runs)


def _tests(task: Task, context: int) -> tuple[Throughput, ...]:
    """Raises DoesNotFit where a depth that was asked for leaves no room."""
    needed = max(task.prompt_tokens, task.tokens)
    depths = task.depths if task.depths is not None else tuple(each for each in USUAL_DEPTHS if each + needed <= context)
    if depths and max(depths) + needed > context:
        what = f"{needed} tokens behind {max(depths)} do not fit, the context holds {context}"
        raise DoesNotFit(what, f"use --context {max(depths) + needed}")
    return throughputs(task.prompt_tokens, task.tokens, depths)


def _request(task: Task, engine: Engine, plan: Plan) -> Request:
    needed = task.prompt_tokens + task.tokens
    if needed > plan.context:
        raise DoesNotFit(f"prompt and answer have {needed} tokens, the context holds {plan.context}", f"use --context {needed}")
    return request_of(text_of(task.prompt_tokens, counted(engine)), task.tokens)


def _arms(plan: Plan) -> tuple[tuple[str, int | None], ...]:
    """The arms and how much they may draft at once."""
    return ((PLAIN, 0), (DRAFTED, None)) if plan.draft else ((PLAIN, 0),)


class _Meters:
    """What is known of this computer's memory and energy, to set an answer against."""

    def __init__(self, result: Opened, world: World) -> None:
        self._plan, self._now = result.plan, world.now
        self._bandwidth = result.machine.memory_bandwidth
        self._sensors = world.energy_sensors()
        self._info: ModelInfo | None = None
        if self._bandwidth:
            self._info = model_info(gguf_file.read_header(Path(result.plan.model.file)))

    @property
    def source(self) -> str | None:
        return self._sensors[0].source if self._sensors else None

    def begin(self) -> Meter:
        return Meter(self._sensors, self._now)

    def ran(self, arm: str, number: int, answer: Answer) -> Ran:
        stats = answer.stats
        share = bandwidth_share(self._plan, self._info, stats, self._bandwidth) if self._info else None
        return Ran(arm, number, replace(stats, bandwidth_share=share), per_token(answer.joules, stats))


def _answers(task: Task, result: Opened, request: Request, meters: _Meters) -> Iterable[Ran]:
    """The order is swapped from pair to pair, so that a machine that slows down favours none. Raises Interrupted."""
    arms = _arms(result.plan)
    for number in range(task.runs + 1):
        for arm, most in arms if number % 2 else arms[::-1]:
            answer = timed(result.engine, replace(request, max_draft=most), meter=meters.begin())
            if number:  # the first round is the warm-up: clocks rise, shaders are compiled
                yield meters.ran(arm, number, answer)

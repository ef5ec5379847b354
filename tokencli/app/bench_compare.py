"""A `bench` beside an earlier one, from its JSON: faster, slower or indistinguishable, figure by figure. Prints nothing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokencli.errors import UsageError
from tokencli.tune.intervals import Interval

if TYPE_CHECKING:
    from tokencli.app.bench import Report

Verdict = Literal["faster", "slower", "indistinguishable", "too few to tell"]
LESS_IS_BETTER = ("ttft_seconds", "itl_ms_p50", "itl_ms_p90", "itl_ms_p99")
MORE_IS_BETTER = ("prefill_tokens_per_second", "decode_tokens_per_second")
PASSES = "plain"  # the arm of llama-bench's tests: passes without a draft
ANYWAY = "--anyway compares them nevertheless"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier report says of itself, and its figures by arm."""

    file: str
    computer: str
    model_bytes: int
    prompt_tokens: int
    tokens: int
    figures: dict[tuple[str, str], Interval]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure then and now."""

    arm: str
    figure: str
    then: Interval
    now: Interval
    verdict: Verdict


def read_earlier(file: Path) -> Earlier:
    """Raises UsageError for what is no report of `bench --json`."""
    try:
        return _parsed(str(file), json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", "check the path") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{file} is no report of tokencli bench --json", "write one with: tokencli bench MODEL --json") from None


def _parsed(file: str, report: dict[str, Any]) -> Earlier:
    figures = {
        (arm, name): Interval(**found)
        for arm, by_name in report["arms"].items()
        for name, found in by_name.items()
        if found is not None and name in (*LESS_IS_BETTER, *MORE_IS_BETTER)
    }
    figures |= {(PASSES, each["test"]): Interval(**each["tokens_per_second"]) for each in report.get("throughput", [])}
    lengths = int(report["prompt_tokens"]), int(report["tokens"])
    return Earlier(file, str(report["computer"]), int(report["plan"]["model"]["bytes"]), *lengths, figures)


def refuse_another(earlier: Earlier, report: "Report") -> None:
    """Raises UsageError where not the same was measured: a comparison would say nothing of what changed."""
    for what, then, now in (
        ("computer", earlier.computer, report.computer),
        ("model's bytes", earlier.model_bytes, report.plan.model.bytes),
        ("prompt's length", earlier.prompt_tokens, report.prompt_tokens),
        ("answer's length", earlier.tokens, report.task.tokens),
    ):
        if then != now:
            raise UsageError(f"{earlier.file} has another {what}: {then}, now {now}", ANYWAY)


def changes(report: "Report", earlier: Earlier) -> list[Change]:
    """Every figure that both have."""
    from tokencli.app.bench import FIGURES

    found = []
    passes = {str(test): speed for test, speed in report.throughput.items()}
    for (arm, figure), then in earlier.figures.items():
        now = report.figure(arm, FIGURES[figure]) if figure in FIGURES else passes.get(figure)
        if now:
            found.append(Change(arm, figure, then, now, _verdict(figure, then, now)))
    return found


def _verdict(figure: str, then: Interval, now: Interval) -> Verdict:
    """Two runs share no pairs: they are told apart only where their intervals do not touch."""
    if not (then.holds and now.holds):
        return "too few to tell"
    if now.low <= then.high and then.low <= now.high:
        return "indistinguishable"
    return "faster" if (now.median < then.median) == (figure in LESS_IS_BETTER) else "slower"

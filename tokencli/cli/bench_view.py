"""What a person or a program sees of `bench`: a table, JSON, CSV, Markdown. Renders, decides nothing."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterator

from tokencli.app.bench import FIGURES, Report
from tokencli.app.bench_compare import changes
from tokencli.cli.views import placement, plan_json, stats_json
from tokencli.tune.intervals import FEWEST, Interval

_LABELS = (
    ("ttft_seconds", "TTFT s", 3),
    ("prefill_tokens_per_second", "prefill tokens/s", 1),
    ("decode_tokens_per_second", "decode tokens/s", 1),
    ("itl_ms_p50", "ITL p50 ms", 1),
    ("itl_ms_p90", "ITL p90 ms", 1),
    ("itl_ms_p99", "ITL p99 ms", 1),
    ("tokens_per_emission", "tokens/emission", 2),
    ("acceptance", "acceptance", 2),
    ("bandwidth_share", "bandwidth share", 2),
    ("joules_per_token", "joules/token", 2),
)


_COLUMNS = ("model", "bytes", "device", "threads", "computer", "build", "arm", "figure", "median", "low", "high", "count")


def report_lines(report: Report) -> list[str]:
    """A table of medians and intervals, a column an arm; below it llama-bench's tests."""
    lines = [_heading(report)]
    lines.append(" " * 17 + "".join(f"{arm:>30}" for arm in report.arms))
    lines += [f"{label:<17}" + "".join(f"{cell:>30}" for cell in cells) for label, cells in _rows(report)]
    if report.speedup:
        told = verdict(report.speedup.low, report.speedup.high) if report.speedup.holds else "too few to tell"
        lines.append(f"decode with the draft, times that without: {report.speedup}: {told}")
    lines += [f"{test!s:<17}{_shown(speed, 1):>30} tokens/s" for test, speed in report.throughput.items()]
    return [*lines, *_footing(report), *_compared_lines(report)]


def markdown_lines(report: Report) -> list[str]:
    """The same as a Markdown table."""
    lines = [_heading(report), "", f"| | {' | '.join(report.arms)} |", f"|---|{'---:|' * len(report.arms)}"]
    lines += [f"| {label} | {' | '.join(cells)} |" for label, cells in _rows(report)]
    empty = " | -" * (len(report.arms) - 1)
    lines += [f"| {test} tokens/s | {_shown(speed, 1)}{empty} |" for test, speed in report.throughput.items()]
    return [*lines, "", *_footing(report), *_compared_lines(report)]


def csv_lines(report: Report) -> list[str]:
    """A line a figure, all in one shape, so that several reports can be put into one file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    plan = report.plan
    what = (plan.model.name, plan.model.bytes, plan.device or "CPU", plan.threads, report.computer, report.build)
    for arm, figure, found in _figures(report):
        writer.writerow((*what, arm, figure, found.median, found.low, found.high, found.count))
    return out.getvalue().splitlines()


def _figures(report: Report) -> Iterator[tuple[str, str, Interval]]:
    """Arm, name and value of all that was measured; llama-bench's tests are passes without a draft."""
    for arm in report.arms:
        for key in FIGURES:
            if found := _figure(report, arm, key):
                yield arm, key, found
    yield from (("plain", str(test), speed) for test, speed in report.throughput.items())


def _heading(report: Report) -> str:
    what = f"{report.prompt_tokens} tokens of prompt, {report.task.tokens} of answer"
    return f"{report.plan.model.name}: {placement(report.plan)}, {report.plan.threads} threads, {what}"


def _rows(report: Report) -> Iterator[tuple[str, list[str]]]:
    for key, label, digits in _LABELS:
        found = [_figure(report, arm, key) for arm in report.arms]
        if any(found):
            yield label, [_shown(each, digits) for each in found]


def _footing(report: Report) -> list[str]:
    count = min((sum(each.arm == arm for each in report.ran) for arm in report.arms), default=0)
    cut = ", interrupted" if report.interrupted else ""
    few = f" of {count} answers each" if count >= FEWEST else f" of {count} answers each, too few for an interval"
    energy = [f"joules by {report.energy}"] if report.energy else []
    return [f"median{' (interval)' if count >= FEWEST else ''}{few}{cut}", *energy]


def _compared_lines(report: Report) -> list[str]:
    earlier = report.task.earlier
    if earlier is None:
        return []
    labels = {key: (label, digits) for key, label, digits in _LABELS}
    lines = [f"against {earlier.file}:"]
    for each in changes(report, earlier):
        label, digits = labels.get(each.figure, (each.figure, 1))
        ratio = f"{each.now.median / each.then.median:.2f} times" if each.then.median else "-"
        lines.append(f"  {each.arm} {label}: {each.then.median:.{digits}f} then, {ratio} now: {each.verdict}")
    return lines


def verdict(low: float, high: float) -> str:
    """Of a ratio's interval, above 1 being better."""
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "indistinguishable"


def json_lines(report: Report) -> list[str]:
    return [report_json(report)]


def report_json(report: Report) -> str:
    """`bench --json`: figures by arm, each with its interval, and all answers behind them."""
    arms = {}
    for arm in report.arms:
        figures = {key: _figure(report, arm, key) for key in FIGURES}
        arms[arm] = {key: dataclasses.asdict(each) if each else None for key, each in figures.items()}
    value = {
        "plan": plan_json(report.plan),
        "prompt_tokens": report.prompt_tokens,
        "tokens": report.task.tokens,
        "computer": report.computer,
        "build": report.build,
        "arms": arms,
        "speedup": dataclasses.asdict(report.speedup) if report.speedup else None,
        "throughput": [
            {"test": str(test), "kind": test.kind, "tokens": test.tokens, "depth": test.depth, "tokens_per_second": value}
            for test, value in ((test, dataclasses.asdict(speed)) for test, speed in report.throughput.items())
        ],
        "energy": report.energy,
        "runs": [
            {"arm": each.arm, "number": each.number, "stats": stats_json(each.stats), "joules_per_token": each.joules_per_token}
            for each in report.ran
        ],
        "interrupted": report.interrupted,
        "compared": [dataclasses.asdict(each) for each in changes(report, report.task.earlier)] if report.task.earlier else None,
    }
    return json.dumps(value, ensure_ascii=False)


def _figure(report: Report, arm: str, key: str) -> Interval | None:
    return report.figure(arm, FIGURES[key])


def _shown(found: Interval | None, digits: int) -> str:
    """Without its interval where there are too few values for one."""
    if found is None:
        return "-"
    span = f" ({found.low:.{digits}f} to {found.high:.{digits}f})" if found.holds else ""
    return f"{found.median:.{digits}f}{span}"

"""`tokencli bench`: parses, hands over to the app, shows what was measured. No decisions."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokencli.cli import options
from tokencli.cli.follow import follow
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Progress, placement, plan_json, stats_json
from tokencli.errors import UsageError

if TYPE_CHECKING:
    from tokencli.app.bench import Report
    from tokencli.plan.choose import Wishes
    from tokencli.tune.intervals import Interval

PromptTokens = Annotated[int, typer.Option("--prompt-tokens", metavar="N", help="Length of the prompt.")]
Tokens = Annotated[int, typer.Option("--tokens", metavar="N", help="Length of the answer.")]
Compare = Annotated[
    Path | None, typer.Option("--compare", metavar="OLD.json", help="Compare with an earlier --json.", show_default=False)
]
Anyway = Annotated[bool, typer.Option("--anyway", help="Compare even with another computer, model or length.")]
Quality = Annotated[bool, typer.Option("--quality", help="Measure instead what a quant or a KV type loses, on a text.")]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="QUANT|FILE", help="What --quality compares with: the best here.", show_default=False),
]
OwnText = Annotated[
    Path | None, typer.Option("--text", metavar="FILE", help="The text --quality reads; one is shipped.", show_default=False)
]
Runs = Annotated[int, typer.Option("--runs", metavar="N", help="Answers to measure, after one to warm up.")]

_LABELS = (
    ("ttft_seconds", "TTFT s", 3),
    ("prefill_tokens_per_second", "prefill tokens/s", 1),
    ("decode_tokens_per_second", "decode tokens/s", 1),
    ("itl_ms_p50", "ITL p50 ms", 1),
    ("itl_ms_p90", "ITL p90 ms", 1),
    ("itl_ms_p99", "ITL p99 ms", 1),
    ("tokens_per_emission", "tokens/emission", 2),
    ("acceptance", "acceptance", 2),
)


def bench_command(terminal: Terminal) -> Callable[..., None]:
    def bench(
        model: options.Model,
        prompt_tokens: PromptTokens = 512,
        tokens: Tokens = 128,
        runs: Runs = 5,
        compare: Compare = None,
        anyway: Anyway = False,
        quality: Quality = False,
        against: Against = None,
        text: OwnText = None,
        gpu_layers: options.GpuLayers = None,
        cpu_moe: options.CpuMoe = None,
        context: options.Context = None,
        threads: options.Threads = None,
        profile: options.Profile = None,
        device: options.Device = None,
        kv_type: options.KvType = None,
        draft: options.Draft = None,
        draft_tokens: options.DraftTokens = None,
        quant: options.Quant = None,
        yes: options.Yes = False,
        as_json: options.Json = False,
        quiet: options.Quiet = False,
    ) -> None:
        """Measure TTFT, inter-token latency, prefill and decode speed; with and without the draft, in interleaved pairs."""
        options.check_range(("--prompt-tokens", prompt_tokens, 1, 1 << 24), ("--tokens", tokens, 2, 1 << 24))
        options.check_range(("--runs", runs, 1, 1000))
        if quality:
            if compare or draft or draft_tokens:
                raise UsageError(
                    "--quality takes no draft and compares with no earlier report", "leave --draft and --compare out"
                )
            wishes = options.wishes(gpu_layers, cpu_moe, device, profile, context, kv_type, threads, draft, draft_tokens, quant)
            measure_quality(model, wishes, against, text, terminal, yes, as_json, quiet)
            return
        if against or text:
            raise UsageError("--against and --text are for --quality", "add --quality, or leave them out")
        from tokencli.app import World
        from tokencli.app import bench as story
        from tokencli.app.bench_compare import read_earlier

        wishes = options.wishes(gpu_layers, cpu_moe, device, profile, context, kv_type, threads, draft, draft_tokens, quant)
        task = story.Task(model, wishes, prompt_tokens, tokens, runs, read_earlier(compare) if compare else None, anyway)
        world = World(confirm=lambda what: terminal.confirm(what, yes))
        report = _followed(story.bench(task, world), terminal, quiet or as_json)
        terminal.stdout.write(report_json(report) + "\n" if as_json else "".join(f"{line}\n" for line in report_lines(report)))
        terminal.stdout.flush()
        if report.interrupted:
            raise typer.Exit(130)

    return bench


def measure_quality(
    model: str,
    wishes: "Wishes",
    against: str | None,
    text: Path | None,
    terminal: Terminal,
    yes: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """`bench --quality`. Raises typer.Exit where it was broken off."""
    from tokencli.app import World
    from tokencli.app import quality as story
    from tokencli.cli import quality_view as view

    options.check_range(("--context", wishes.context, 32, 1 << 24))
    world = World(confirm=lambda what: terminal.confirm(what, yes))
    steps = story.quality(story.Task(model, wishes, against, text), world)
    report = view.followed(steps, terminal, quiet or as_json)
    lines = [view.quality_json(report)] if as_json else view.quality_lines(report)
    terminal.stdout.write("".join(f"{line}\n" for line in lines))
    terminal.stdout.flush()
    if report.interrupted:
        raise typer.Exit(130)


def _followed(steps: Any, terminal: Terminal, quiet: bool) -> "Report":
    from tokencli.app.bench import Ran

    progress = Progress(terminal, quiet=quiet)

    def show(event: Any) -> None:
        if isinstance(event, Ran):
            progress.tell(f"{event.arm} {event.number}")
        else:
            progress.show(event)

    report: Report = follow(steps, show, progress.clear)
    return report


def report_lines(report: "Report") -> list[str]:
    """A table of medians and intervals, a column an arm."""
    task = report.task
    what = f"{report.prompt_tokens} tokens of prompt, {task.tokens} of answer"
    lines = [f"{report.plan.model.name}: {placement(report.plan)}, {report.plan.threads} threads, {what}"]
    lines.append(" " * 17 + "".join(f"{arm:>30}" for arm in report.arms))
    for key, label, digits in _LABELS:
        found = [_figure(report, arm, key) for arm in report.arms]
        if any(found):
            lines.append(f"{label:<17}" + "".join(f"{_shown(each, digits):>30}" for each in found))
    if report.speedup:
        lines.append(
            f"decode with the draft, times that without: {report.speedup}: {verdict(report.speedup.low, report.speedup.high)}"
        )
    count = min((sum(each.arm == arm for each in report.ran) for arm in report.arms), default=0)
    few = "" if count >= 5 else ", too few for an interval that holds the median with 90 %: smallest and largest"
    cut = ", interrupted" if report.interrupted else ""
    return [*lines, f"median (interval) of {count} answers each{few}{cut}", *_compared_lines(report)]


def _compared_lines(report: "Report") -> list[str]:
    from tokencli.app.bench_compare import changes

    earlier = report.task.earlier
    if earlier is None:
        return []
    labels = {key: (label, digits) for key, label, digits in _LABELS}
    lines = [f"against {earlier.file}:"]
    for each in changes(report, earlier):
        label, digits = labels[each.figure]
        ratio = f"{each.now.median / each.then.median:.2f} times" if each.then.median else "-"
        lines.append(f"  {each.arm} {label}: {each.then.median:.{digits}f} then, {ratio} now: {each.verdict}")
    return lines


def verdict(low: float, high: float) -> str:
    """Of a ratio's interval, above 1 being better."""
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "indistinguishable"


def report_json(report: "Report") -> str:
    """`bench --json`: figures by arm, each with its interval, and all answers behind them."""
    from tokencli.app.bench import FIGURES
    from tokencli.app.bench_compare import changes

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
        "runs": [{"arm": each.arm, "number": each.number, "stats": stats_json(each.stats)} for each in report.ran],
        "interrupted": report.interrupted,
        "compared": [dataclasses.asdict(each) for each in changes(report, report.task.earlier)] if report.task.earlier else None,
    }
    return json.dumps(value, ensure_ascii=False)


def _figure(report: "Report", arm: str, key: str) -> "Interval | None":
    from tokencli.app.bench import FIGURES

    return report.figure(arm, FIGURES[key])


def _shown(found: "Interval | None", digits: int) -> str:
    return f"{found.median:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})" if found else "-"

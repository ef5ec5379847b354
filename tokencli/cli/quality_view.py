"""`tokencli bench --quality`: shows what was found as a table or as JSON. Renders, decides nothing."""

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokencli.cli.follow import follow
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Progress, placement, plan_json
from tokencli.core import Note

if TYPE_CHECKING:
    from tokencli.app.quality import Report
    from tokencli.core import Plan
    from tokencli.tune.quality import Figure


def followed(steps: Any, terminal: Terminal, quiet: bool) -> "Report":
    """The report, its making shown: each note once, though two models are looked for and loaded in turn."""
    from tokencli.app.quality import Read

    progress, told = Progress(terminal, quiet=quiet), set()

    def show(event: Any) -> None:
        if isinstance(event, Read):
            progress.tell(f"{event.side}: chunk {event.number} of {event.count}")
        elif not (isinstance(event, Note) and event.text in told):
            progress.show(event)
        if isinstance(event, Note):
            told.add(event.text)

    report: Report = follow(steps, show, progress.clear)
    return report


def quality_lines(report: "Report") -> Iterator[str]:
    """What was compared, a line a figure with its interval, and how far the result goes."""
    found = report.figures
    yield f"{report.plan.model.name}: {_side(report.plan)}, {placement(report.plan)}, {report.plan.threads} threads"
    if report.reference:
        yield f"against {_side(report.reference)}: {report.why}"
    yield f"{report.text}: {found.chunks} chunks of {report.chunk} tokens, {found.tokens} counted"
    yield from _rows(report)
    if found.chunks > 1:
        yield "(interval that holds the figure for such texts with about 90 %, by what differs from chunk to chunk)"
    else:
        yield "one chunk has no interval: give a longer --text"
    if report.interrupted:
        yield "interrupted: this is what was read until then, and nothing is remembered"
    elif report.remembered:
        yield "remembered: tokencli plan goes by this loss instead of published ones"


def _rows(report: "Report") -> Iterator[str]:
    found = report.figures
    if found.mean_divergence and found.high_divergence and found.same_top:
        yield _row("mean KL divergence", found.mean_divergence, ".2g", " nats")
        yield _row("its 99th percentile", found.high_divergence, ".2g", " nats")
        yield _row("same most probable token", found.same_top.mapped(lambda share: 100 * share), ".1f", " %")
    yield _row("perplexity", found.perplexity, ".2f", "")
    if found.reference_perplexity and found.perplexity_lost:
        yield _row("of the reference", found.reference_perplexity, ".2f", "")
        yield _row("perplexity lost", found.perplexity_lost, ".2f", " %")


def _row(label: str, figure: "Figure", form: str, unit: str) -> str:
    interval = "" if figure.low is None or figure.high is None else f" ({figure.low:{form}} to {figure.high:{form}})"
    return f"  {label:<26}{figure.value:{form}}{unit}{interval}"


def _side(plan: "Plan") -> str:
    return f"{plan.model.quant} with a KV cache of {plan.kv_type}"


def quality_json(report: "Report") -> str:
    """`bench --quality --json`: one object. Divergences in nats, `same_top` a share, `perplexity_lost_percent` in percent."""
    found = report.figures
    named = {
        "kl_divergence_mean": found.mean_divergence,
        "kl_divergence_p99": found.high_divergence,
        "same_top": found.same_top,
        "perplexity": found.perplexity,
        "reference_perplexity": found.reference_perplexity,
        "perplexity_lost_percent": found.perplexity_lost,
    }
    value = {
        "plan": plan_json(report.plan),
        "reference": plan_json(report.reference) if report.reference else None,
        "reference_why": report.why or None,
        "text": report.text,
        "chunk_tokens": report.chunk,
        "chunks": found.chunks,
        "tokens": found.tokens,
        "quality": {key: dataclasses.asdict(figure) if figure else None for key, figure in named.items()},
        "computer": report.computer,
        "build": report.build,
        "remembered": report.remembered,
        "interrupted": report.interrupted,
    }
    return json.dumps(value, ensure_ascii=False)

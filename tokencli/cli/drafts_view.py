"""What is seen of `bench --prompts`: the answer of the moment, and which draft pays for which prompts. Decides nothing."""

import dataclasses
import json
from typing import Any

from tokencli.app.drafts import Report
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Progress, one_line, plan_json
from tokencli.tune.drafts import OFF, Advice, Sample


class Shown:
    """One line that moves."""

    def __init__(self, terminal: Terminal, *, quiet: bool) -> None:
        self._progress = Progress(terminal, quiet=quiet)

    def show(self, event: Any) -> None:
        if isinstance(event, Sample):
            half = "held out" if event.held_out else "choosing"
            self._progress.tell(f"{half}: {event.kind}, {event.arm}: {1 / event.seconds_per_token:.1f} tokens/s")
        else:
            self._progress.show(event)

    def clear(self) -> None:
        self._progress.clear()


def drafts_lines(report: Report) -> list[str]:
    """A line a kind, that of all prompts last."""
    prompts = {(each.kind, each.prompt) for each in report.samples}
    lines = [
        f"{report.plan.model.name}: {', '.join(report.arms)} on {len(prompts)} prompts, answers of {report.task.tokens} tokens"
    ]
    lines += [f"  {one_line(each.kind or 'in all')}: {_said(each)}" for each in report.advice]
    if report.interrupted:
        lines.append("  interrupted")
    if report.kept:
        lines.append(f"what was learned of {' and '.join(report.kept)} is kept: the next run with that draft begins with it")
    return lines


def _said(advice: Advice) -> str:
    if advice.chosen == OFF:
        return "no draft was faster on the prompts that choose: off"
    if advice.gain is None:
        return f"{advice.chosen} looks best, no prompt is left to hold it against: at least two of a kind are needed"
    acceptance = f", acceptance {advice.acceptance:.2f}" if advice.acceptance is not None else ""
    held = f"on {advice.prompts} prompt{'s' * (advice.prompts > 1)} held out"
    gain = advice.gain
    if not gain.holds:
        few = f"of {gain.pairs} pair{'s' * (gain.pairs > 1)}, too few to tell"
        return f"{advice.chosen} {gain.median:.2f} times as fast {held}{acceptance}: {few}"
    told = f"{gain.median:.2f} times as fast ({gain.low:.2f} to {gain.high:.2f}) {held}{acceptance}"
    if advice.recommended == OFF:
        return f"{advice.chosen} {told}: not told to be faster: off"
    return f"{advice.chosen} {told}: {advice.recommended}"


def drafts_json(report: Report) -> str:
    """`bench --prompts --json`: the advice by kind, and all answers behind it."""
    value = {
        "plan": plan_json(report.plan),
        "tokens": report.task.tokens,
        "arms": report.arms,
        "advice": [dataclasses.asdict(each) for each in report.advice],
        "answers": [dataclasses.asdict(each) for each in report.samples],
        "kept": report.kept,
        "interrupted": report.interrupted,
    }
    return json.dumps(value, ensure_ascii=False)

"""`tokencli doctor`: parses, and renders the report for a person or as JSON. Decides nothing."""

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tokencli.cli import options
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import one_line

if TYPE_CHECKING:
    from tokencli.app.doctor import Report

_CLEAR_LINE = "\r\x1b[K"
_MARKS = {"fail": "FAIL", "warn": "WARN", "pass": "PASS"}


def doctor_command(terminal: Terminal) -> Callable[..., None]:
    def doctor(
        forget: Annotated[bool, typer.Option("--forget", help="Forget what failed here before, and look again.")] = False,
        as_json: options.Json = False,
    ) -> None:
        """What was found on this computer, what was left out and why, and what to do about it."""
        from tokencli.app import World
        from tokencli.app import doctor as story
        from tokencli.core import Note

        world = World()
        forgotten = story.forget(world) if forget else 0
        for event in story.doctor(world):
            if isinstance(event, Note):
                _status(event.text, terminal)
                continue
            _status("", terminal)
            if as_json:
                terminal.stdout.write(report_json(event) + "\n")
            else:
                show_report(event, forgotten, terminal)
            terminal.stdout.flush()

    return doctor


def report_json(report: "Report") -> str:
    """`doctor --json` of the contract; `machine` is what `--machine` reads."""
    value = {"machine": dataclasses.asdict(report.machine), "findings": [dataclasses.asdict(each) for each in report.findings]}
    return json.dumps(value, ensure_ascii=False)


def show_report(report: "Report", forgotten: int, terminal: Terminal) -> None:
    lines = [f"{forgotten} verdict{'s' * (forgotten > 1)} of earlier failures forgotten"] if forgotten else []
    for each in report.findings:
        lines.append(f"{_MARKS[each.level]}  {one_line(each.what)}")
        if each.hint:
            lines.append(f"      {one_line(each.hint)}")
    terminal.stdout.writelines(f"{line}\n" for line in lines)


def _status(text: str, terminal: Terminal) -> None:
    if terminal.shows_progress:
        terminal.stderr.write(f"{_CLEAR_LINE}{text}")
        terminal.stderr.flush()

"""What a person sees of a conversation: answers as they come, the status line, figures and sessions. Decides nothing."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokencli.cli.answer import AnswerView
from tokencli.cli.views import Aside, one_line, placement, progress, size, summary
from tokencli.core import Done, Event, Loading, Note, Prefilling, Text

if TYPE_CHECKING:
    from tokencli.app.chat import ChatStats
    from tokencli.world.sessions import SessionLine

_FIRST_WORDS = 50


class EventView:
    """The events of one answer, or of a load: text and progress to the answer's view, notes beside it."""

    def __init__(self, aside: Aside, answer: AnswerView) -> None:
        self._aside = aside
        self._answer = answer
        self.done: Done | None = None

    def show(self, event: Event) -> None:
        match event:
            case Note(text):
                if not self._aside.quiet:
                    self._answer.note(one_line(f"note: {text}"))
            case Loading() | Prefilling():
                doing = progress(event)
                if doing and not self._aside.quiet:
                    self._answer.status(doing)
            case Text(kind, text):
                if kind == "answer" or not self._aside.quiet:
                    self._answer.feed(kind, text)
            case Done():
                self.done = event

    def finish(self) -> None:
        self._answer.finish()

    def abandon(self) -> None:
        self._answer.abandon()


def greeting(model: str, stats: "ChatStats") -> str:
    placed = f", {placement(stats.plan)}" if stats.plan else ""
    saved = f"; conversation {stats.session}" if stats.messages else ""
    return f"{model}{placed}{saved}; /help tells what can be typed"


def status_line(model: str, stats: "ChatStats") -> str:
    """Model, context used, speed of the last answer, acceptance, memory: what is known of them."""
    last = stats.last
    speed = last.decode_tokens_per_second if last else None
    parts = [
        one_line(model),
        context_line(stats),
        f"{speed:.1f} tokens/s" if speed is not None else None,
        f"draft {100 * last.acceptance:.0f} %" if last and last.acceptance is not None else None,
        size(stats.memory_bytes) if stats.memory_bytes is not None else None,
    ]
    return " | ".join(part for part in parts if part)


def context_line(stats: "ChatStats") -> str:
    return f"{stats.context_used} of {stats.plan.context if stats.plan else '?'} tokens"


def stats_lines(model: str, stats: "ChatStats") -> list[str]:
    plan, last = stats.plan, stats.last
    return [
        f"model    {model}" + (f", {placement(plan)}" if plan else ""),
        f"session  {stats.session}, {stats.messages} messages",
        f"context  {context_line(stats)}",
        *([f"last     {summary(plan, Done('stop', last))}"] if plan and last else []),
        *([f"reuse    {stats.reuse}"] if stats.reuse else []),
        f"memory   {size(stats.memory_bytes)}",
    ]


def session_lines(sessions: Iterable["SessionLine"]) -> list[str]:
    """A table of saved conversations, the latest first."""
    rows = [(each, time.strftime("%Y-%m-%d %H:%M", time.localtime(each.updated))) for each in sessions]
    if not rows:
        return ["no saved conversation"]
    name = max(len(each.name) for each, _ in rows)
    model = max(len(each.model) for each, _ in rows)
    return [
        f"{one_line(each.name):<{name}}  {when}  {each.messages:>4} messages  "
        f"{one_line(each.model):<{model}}  {shortened(each.first, _FIRST_WORDS)}"
        for each, when in rows
    ]


def shortened(text: str, length: int = 200) -> str:
    """The beginning of a text, on one line."""
    line = one_line(text)
    return line if len(line) <= length else line[: length - 1] + "…"

"""What a person sees of a conversation: answers as they come, the status line, figures and sessions. Decides nothing."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from tokencli.cli.terminal import Terminal
from tokencli.cli.views import DIM, RESET, Aside, Channel, one_line, placement, size, summary
from tokencli.core import Done, Event, Loading, Note, Prefilling, Text, TextKind

if TYPE_CHECKING:
    from tokencli.app.chat import ChatStats
    from tokencli.world.sessions import SessionLine

_FIRST_WORDS = 50


class AnswerView(Protocol):
    """One answer on its way to the screen."""

    def feed(self, kind: TextKind, text: str) -> None: ...

    def finish(self) -> None: ...

    def abandon(self) -> None:
        """The answer ended before its end: keep what was shown, leave the cursor on a line of its own."""


def answer_view(terminal: Terminal, plain: bool, thinking: bool) -> AnswerView:
    """What shows the next answer; `thinking`: its reasoning, too."""
    return PlainAnswer(terminal, thinking)


class PlainAnswer:
    """The answer to stdout as the model wrote it, reasoning dim to stderr."""

    def __init__(self, terminal: Terminal, thinking: bool) -> None:
        self._terminal = terminal
        self._thinking = thinking
        self._answer, self._thoughts = Channel(terminal.shows_answer), Channel(terminal.stderr.isatty())
        self._last: TextKind | None = None

    def feed(self, kind: TextKind, text: str) -> None:
        if kind == "reasoning" and not self._thinking:
            return
        if kind != self._last:
            self._end_thoughts()
            self._last = kind
        if kind == "answer":
            self._write(self._answer.feed(text))
        else:
            shown = self._thoughts.feed(text)
            self._terminal.stderr.write(f"{DIM}{shown}{RESET}" if self._terminal.shows_colour else shown)
            self._terminal.stderr.flush()

    def finish(self) -> None:
        self._end_thoughts()
        if self._last == "answer":
            self._write(self._answer.flush() + "\n")

    abandon = finish

    def _end_thoughts(self) -> None:
        if self._last == "reasoning":
            self._terminal.stderr.write(self._thoughts.flush() + "\n\n")
            self._terminal.stderr.flush()

    def _write(self, text: str) -> None:
        self._terminal.stdout.write(text)
        self._terminal.stdout.flush()


class EventView:
    """The events of one answer, or of a load: text to the answer's view, the rest beside it.

    A note in mid-answer (the engine had to be started again) stands on a line of its own, and a new view goes on after it.
    """

    def __init__(self, aside: Aside, new_answer: Callable[[], AnswerView]) -> None:
        self._aside = aside
        self._new_answer = new_answer
        self._answer = new_answer()
        self._in_text = False
        self.done: Done | None = None

    def show(self, event: Event) -> None:
        match event:
            case Note():
                if self._in_text:
                    self._answer.abandon()
                    self._answer, self._in_text = self._new_answer(), False
                self._aside.show(event)
            case Loading() | Prefilling() if not self._in_text:
                self._aside.show(event)
            case Text(kind, text):
                self._in_text = True
                self._aside.clear()
                self._answer.feed(kind, text)
            case Done():
                self.done = event

    def finish(self) -> None:
        self._aside.clear()
        self._answer.finish()

    def abandon(self) -> None:
        self._aside.clear()
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

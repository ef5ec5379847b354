"""What a person sees of one answer while it comes, and the plain way to show it. Knows no Markdown and no event.

`answer_view` chooses: laid out and drawn in place on a terminal that can, else the text as it is.
"""

import os
import time
from collections.abc import Callable
from typing import Literal, Protocol, TextIO

from tokencli.cli.terminal import Terminal
from tokencli.core import TextKind
from tokencli.decode.text import EscapeStripper

Thinking = Literal["show", "hide"]
_CLEAR_LINE = "\r\x1b[K"
_DIM, _DRAFTED, _RESET = "\x1b[2m", "\x1b[32m", "\x1b[0m"


class AnswerView(Protocol):
    """Shows one answer, reasoning told apart. The cursor must stand at the beginning of a line, and does again at the end."""

    def status(self, text: str) -> None:
        """Say what goes on until text comes; the next call takes it away."""

    def feed(self, kind: TextKind, text: str) -> None:
        """Show a piece of the model's text."""

    def note(self, text: str) -> None:
        """Tell something amid the answer, on a line of its own."""

    def finish(self) -> None:
        """Show the rest and end its line. No call may follow."""

    def abandon(self) -> None:
        """The same for an answer that was cut short (Ctrl-C, an error): what came is shown."""


def answer_view(
    terminal: Terminal,
    *,
    plain: bool = False,
    thinking: Thinking = "show",
    now: Callable[[], float] = time.monotonic,
    size: Callable[[], os.terminal_size] | None = None,
) -> AnswerView:
    """The view for this terminal. `size`: the window's, asked again for each drawing."""
    if plain or not terminal.draws_answer:
        return PlainView(terminal, thinking=thinking, now=now)
    from tokencli.cli.markdown_view import MarkdownView  # rich and its parsers load only where they are used

    return MarkdownView(terminal, thinking=thinking, now=now, size=size or (lambda: window(terminal.stdout)))


def window(stream: TextIO) -> os.terminal_size:
    """The window's size in cells; 80 x 24 where the terminal does not say."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return os.terminal_size((size.columns or 80, size.lines or 24))


class PlainView:
    """Writes text as it comes and never moves the cursor back but for the status: answer to stdout, the rest to stderr."""

    def __init__(self, terminal: Terminal, *, thinking: Thinking = "show", now: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._answer = _Channel(terminal.shows_answer)
        self._thoughts = _Channel(terminal.stderr.isatty())
        self._hides = thinking == "hide"
        self._now = now
        self._thinking_since: float | None = None
        self._answered = False
        self._amid = False  # the cursor is behind text
        self._status = False

    def status(self, text: str) -> None:
        if self._terminal.shows_progress and not self._answered and self._thinking_since is None:
            self._write(self._terminal.stderr, f"{_CLEAR_LINE}{text}")
            self._status = True

    def feed(self, kind: TextKind, text: str, drafted: bool = False) -> None:
        """`drafted`: coloured where there are colours."""
        self.clear_status()
        if kind == "reasoning":
            self._think(self._thoughts.feed(text))
            return
        self._end_thinking()
        shown = self._answer.feed(text)
        self._answered = self._answered or bool(text)
        self._amid = not shown.endswith("\n") if shown else self._amid
        coloured = drafted and shown and self._terminal.colours_answer
        self._write(self._terminal.stdout, f"{_DRAFTED}{shown}{_RESET}" if coloured else shown)

    def note(self, text: str) -> None:
        self.clear_status()
        self._end_thinking()
        if self._amid and self._terminal.shows_answer:
            self._write(self._terminal.stdout, "\n")
        self._write(self._terminal.stderr, EscapeStripper().feed(text) + "\n")

    def finish(self) -> None:
        self.clear_status()
        self._end_thinking()
        if self._answered:
            self._write(self._terminal.stdout, "\n")

    abandon = finish

    def clear_status(self) -> None:
        if self._status:
            self._write(self._terminal.stderr, _CLEAR_LINE)
            self._status = False

    def _think(self, text: str) -> None:
        begins = self._thinking_since is None
        if self._thinking_since is None:
            self._thinking_since = self._now()
        if not self._hides:
            self._write(self._terminal.stderr, _DIM * (begins and self._terminal.shows_colour) + text)

    def _end_thinking(self) -> None:
        if self._thinking_since is not None:
            thought = thought_for(self._now() - self._thinking_since) if self._hides else ""
            reset = _RESET if self._terminal.shows_colour and not self._hides else ""
            self._write(self._terminal.stderr, f"{thought}{reset}\n\n")
            self._thinking_since = None

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        if text:
            stream.write(text)
            stream.flush()


class _Channel:
    """Model text on its way to a stream: stripped of terminal escapes where a terminal would obey them."""

    def __init__(self, is_terminal: bool) -> None:
        self._stripper = EscapeStripper() if is_terminal else None

    def feed(self, text: str) -> str:
        return self._stripper.feed(text) if self._stripper else text


def thought_for(seconds: float) -> str:
    return f"thought for {seconds:.0f} s"

"""A terminal of cells for tests (pyte), with all that scrolled out of it."""

import io
import os
from collections.abc import Iterable, Sequence

import pyte
from pyte.screens import Char

from tokencli.cli.answer import AnswerView, Thinking, answer_view
from tokencli.cli.terminal import Terminal
from tokencli.core import TextKind


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Tty(io.StringIO):
    """A terminal window that remembers what was written to it."""

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        super().__init__()
        self._open(columns, rows)

    def _open(self, columns: int, rows: int) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.Stream(self.screen)
        self.drawings = 0

    def isatty(self) -> bool:
        return True

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.screen.columns, self.screen.lines))

    def write(self, text: str) -> int:
        self._stream.feed(text)
        self.drawings += 1
        return super().write(text)

    def resize(self, columns: int, rows: int) -> None:
        """As terminals do that wrap again what got too long; colours are lost here."""
        text = "\r\n".join(self.lines(whole=True))
        self._open(columns, rows)
        self._stream.feed(text)

    def cells(self) -> list[list[Char]]:
        """Scrollback and screen, without blanks at the end of lines and of the whole."""
        rows = [*self.screen.history.top, *(self.screen.buffer[at] for at in range(self.screen.lines))]
        lines = [[row[at] for at in range(self.screen.columns)] for row in rows]
        for line in lines:
            while line and line[-1].data == " ":
                line.pop()
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def lines(self, *, whole: bool = False) -> list[str]:
        """The same as text; `whole`: down to the cursor and up to it in its line."""
        lines = ["".join(cell.data for cell in line) for line in self.cells()]
        if whole:
            at = len(self.screen.history.top) + self.screen.cursor.y
            lines += [""] * (at + 1 - len(lines))
            lines[at] = lines[at].ljust(self.screen.cursor.x)
        return lines


def view_on(
    tty: io.StringIO,
    clock: Clock,
    *,
    thinking: Thinking = "show",
    plain: bool = False,
    err: io.StringIO | None = None,
    **environ: str,
) -> AnswerView:
    terminal = Terminal(io.StringIO(), tty, err or io.StringIO(), environ)
    size = tty.size if isinstance(tty, Tty) else None
    return answer_view(terminal, plain=plain, thinking=thinking, now=clock, size=size)


def streamed(pieces: Iterable[str], *, columns: int = 80, rows: int = 24, seconds: float = 0.05, **environ: str) -> Tty:
    """A window after an answer in pieces, one each `seconds`."""
    tty, clock = Tty(columns, rows), Clock()
    view = view_on(tty, clock, **environ)
    for piece in pieces:
        view.feed("answer", piece)
        clock.time += seconds
    view.finish()
    return tty


def lines_of(parts: Sequence[tuple[TextKind, str]], *, thinking: Thinking = "show", seconds: float = 1.0) -> list[str]:
    """What stands in a window after these pieces."""
    tty, clock = Tty(), Clock()
    view = view_on(tty, clock, thinking=thinking)
    for kind, text in parts:
        view.feed(kind, text)
        clock.time += seconds
    view.finish()
    return tty.lines()

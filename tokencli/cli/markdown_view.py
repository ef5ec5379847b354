"""An answer as Markdown on a terminal, drawn again while it grows. Knows when to draw; not how Markdown looks, nor the screen.

At most 30 drawings a second, and fewer where one takes long: drawing gets a fifth of the time at most.
"""

import os
from collections.abc import Callable
from typing import Protocol

from rich.style import Style
from rich.text import Text

from tokencli.cli.answer import Thinking, thought_for
from tokencli.cli.markdown import Markdown, wrapped
from tokencli.cli.markdown_stream import MarkdownStream
from tokencli.cli.region import Region
from tokencli.cli.terminal import Terminal
from tokencli.core import TextKind
from tokencli.decode.text import EscapeStripper

LEAST_GAP = 1 / 30  # seconds from one drawing to the next
_SHARE = 5
_DIM = Style.parse("dim")


class _Part(Protocol):
    """A stretch of reasoning or of answer."""

    def feed(self, text: str) -> None: ...
    def final(self, width: int) -> list[Text]: ...
    def open(self, width: int) -> list[Text]: ...
    def end(self, width: int) -> list[Text]: ...


class MarkdownView:
    """An AnswerView for a terminal that can be drawn on; stderr is not used, so that nothing writes in between."""

    def __init__(
        self, terminal: Terminal, *, thinking: Thinking, now: Callable[[], float], size: Callable[[], os.terminal_size]
    ) -> None:
        self._region = Region(terminal.stdout, colour=terminal.colours_answer)
        self._markdown = Markdown(colour=terminal.colours_answer)
        self._thinking = thinking
        self._now = now
        self._size = size
        self._next = now()
        self._stripper = EscapeStripper()
        self._kind: TextKind | None = None
        self._part: _Part = MarkdownStream(self._markdown)
        self._ended: list[Text] = []  # final lines of earlier parts, not drawn yet
        self._status = ""

    def status(self, text: str) -> None:
        self._status = EscapeStripper().feed(text)
        self._draw_if_due()

    def feed(self, kind: TextKind, text: str) -> None:
        self._status = ""
        if kind != self._kind:
            self._begin(kind)
        self._part.feed(self._stripper.feed(text))
        self._draw_if_due()

    def note(self, text: str) -> None:
        """Above the block that is still open, which goes on below it."""
        width = self._size().columns
        self._ended += [*self._part.final(width), *wrapped(Text(EscapeStripper().feed(text), _DIM), width)]
        self._next = self._now()
        self._draw_if_due()

    def finish(self) -> None:
        self._status = ""
        self._end_part()
        self._region.draw(self._ended, [], self._size())

    abandon = finish

    def _begin(self, kind: TextKind) -> None:
        if self._kind:
            self._end_part()
            self._ended.append(Text())
        self._kind = kind
        self._stripper = EscapeStripper()
        self._part = MarkdownStream(self._markdown) if kind == "answer" else self._thoughts()

    def _thoughts(self) -> _Part:
        return _Thoughts() if self._thinking == "show" else _HiddenThoughts(self._now)

    def _end_part(self) -> None:
        width = self._size().columns
        self._ended += [*self._part.final(width), *self._part.end(width)]

    def _draw_if_due(self) -> None:
        start = self._now()
        if start < self._next:
            return
        size = self._size()
        final = [*self._ended, *self._part.final(size.columns)]
        status = [part for part in wrapped(Text(self._status, _DIM), size.columns) if part]
        self._region.draw(final, [*self._part.open(size.columns), *status], size)
        self._ended = []
        self._next = start + max(LEAST_GAP, _SHARE * (self._now() - start))


class _Thoughts:
    """Reasoning shown dimmed, line by line; never Markdown."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> None:
        self._text += text

    def final(self, width: int) -> list[Text]:
        whole, line_feed, self._text = self._text.rpartition("\n")
        return self._lines(whole, width) if line_feed else []

    def open(self, width: int) -> list[Text]:
        return self._lines(self._text, width) if self._text else []

    def end(self, width: int) -> list[Text]:
        return self.open(width)

    @staticmethod
    def _lines(text: str, width: int) -> list[Text]:
        return wrapped(Text(text.expandtabs(4), _DIM), width)


class _HiddenThoughts:
    """One line instead of the reasoning, with the time it takes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()

    def feed(self, text: str) -> None:
        pass

    def final(self, width: int) -> list[Text]:
        return []

    def open(self, width: int) -> list[Text]:
        return [Text(f"thinking {self._now() - self._since:.0f} s ...", _DIM)]

    def end(self, width: int) -> list[Text]:
        return [Text(thought_for(self._now() - self._since), _DIM)]

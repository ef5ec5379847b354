"""The last lines of a terminal, drawn in place: what is above them is never touched again. Knows nothing of what they say.

Lines are not wrapped by the terminal, so a character that it takes for wider than we do cannot shift the cursor's row.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

_BEGIN, _END = "\x1b[?2026h\x1b[?7l", "\x1b[?7h\x1b[?2026l"  # drawn at once where the terminal can; no wrapping meanwhile
_CLEAR_BELOW = "\x1b[J"
NEW_LINE = "\r\n"


class Region:
    """Draws on a terminal whose cursor stands at the beginning of an empty line, and leaves it so when nothing is open."""

    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._console = Console(file=stream, width=80, height=1)  # asked for styles only
        self._drawn = [_Line("", 0)]  # the cursor is at the end of the last
        self._columns = 0

    def draw(self, final: Sequence[Text], open_: Sequence[Text], size: os.terminal_size) -> None:
        """Put `final` where the open lines were, for good, and `open_` below, or as much of its end as the screen holds."""
        shown = [self._line(line) for line in open_[-max(1, size.lines - 1) :]] or [_Line("", 0)]
        lines = [*map(self._line, final), *shown]
        narrower = size.columns < self._columns
        same = 0 if narrower else min(_common(self._drawn, lines), len(lines) - 1)
        if narrower or lines != self._drawn:
            self._replace(self._rows(size.columns if narrower else None), same, lines)
        self._drawn, self._columns = shown, size.columns

    def _replace(self, rows: list[int], same: int, lines: list["_Line"]) -> None:
        """Write from the first line that differs, or at the end of the last where only new ones come after it."""
        if same == len(rows):
            at, written = "", ["", *(line.text for line in lines[same:])]
        else:
            up = sum(rows[same:]) - 1
            at, written = f"\x1b[{up}A\r" * bool(up) or "\r", [line.text for line in lines[same:]]
            at += _CLEAR_BELOW
        self._stream.write(f"{_BEGIN}{at}{NEW_LINE.join(written)}{_END}")
        self._stream.flush()

    def _rows(self, columns: int | None) -> list[int]:
        """Screen rows of each drawn line; a terminal that got narrower has wrapped them."""
        return [max(1, -(-line.cells // columns)) if columns else 1 for line in self._drawn]

    def _line(self, text: Text) -> "_Line":
        parts = Text.assemble(text).render(self._console)  # assembled, for a text without spans renders without its style
        return _Line("".join(self._ansi(part.text, part.style) for part in parts), text.cell_len)

    def _ansi(self, text: str, style: Style | None) -> str:
        if not style:
            return text
        return (style if self._colour else style.without_color).render(text, color_system=ColorSystem.STANDARD)


class _Line(NamedTuple):
    text: str
    cells: int


def _common(before: Sequence[_Line], after: Sequence[_Line]) -> int:
    count = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            break
        count += 1
    return count

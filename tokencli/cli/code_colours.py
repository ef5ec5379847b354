"""Syntax colours for code that comes line by line. Knows Pygments' lexers; knows nothing of Markdown or of the screen.

A line's colours are what the lexer says of it and the lines above, so a finished line never changes; what Pygments would say
differently only because of a line below (a comment that is closed there) stays as it was.
"""

import functools
import re
from typing import Any, NamedTuple

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, String
from pygments.util import ClassNotFound
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

LONGEST_LINE = 1_000  # characters: what is longer is data, and slow to colour
LONGEST_CONTEXT = 4_000
_LINES_REMEMBERED = 2_000
_PLAIN = Style.parse("cyan")
_GOES_ON = " \t)]}<"  # a line that begins so belongs to something above


class Above(NamedTuple):
    """What is above a line: the text the lexer must read first, and whether that ended outside of comments and strings."""

    text: str = ""
    between: bool = True


class CodeColours:
    """Colours lines of code; the same line below the same lines is lexed once."""

    def __init__(self) -> None:
        self._theme = Syntax.get_theme("ansi_dark")  # the terminal's own palette, so right on light and dark
        self._lexer = functools.cache(_lexer)
        self._remembered = functools.lru_cache(_LINES_REMEMBERED)(self._coloured)

    def line(self, info: str, above: Above, line: str) -> tuple[Text, Above]:
        """The line of a block with this info string in its colours, and what is above the next one."""
        found = re.match(r"[{.\s]*([\w+#-]+)", info)
        lexer = self._lexer(found[1].lower()) if found else None
        if lexer is None or len(line) > LONGEST_LINE:
            return Text(line, _PLAIN), Above()
        if line and above.between and line[0] not in _GOES_ON:
            above = Above()
        text, above = self._remembered(lexer, above.text, line)
        return text.copy(), above if len(above.text) < LONGEST_CONTEXT else Above()

    def _coloured(self, lexer: Any, above: str, line: str) -> tuple[Text, Above]:
        text, at, kind = Text(), -len(above), None
        for kind, value in lexer.get_tokens(f"{above}{line}\n"):
            start, at = at, at + len(value)
            if at > 0:
                text.append(value[max(0, -start) :].rstrip("\n"), self._theme.get_style_for_token(kind))
        return text, Above(f"{above}{line}\n", kind not in Comment and kind not in String)


def _lexer(name: str) -> Any:
    try:
        return get_lexer_by_name(name, stripnl=False)
    except ClassNotFound:
        return None

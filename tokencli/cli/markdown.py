"""Markdown as lines of styled text for one width. Knows neither a terminal nor how the text came.

Rules that depend on later text are replaced by ones that do not, so that what was shown can stand: link reference definitions
are shown as they are; list items stand apart where the source has a blank line between these two; a number's width is its own.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console, JustifyMethod
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tokencli.cli.code_colours import Above, CodeColours
from tokencli.decode.text import EscapeStripper

LEAST_ROOM = 8  # cells for text; deeper nesting loses its marks instead
DEEPEST = 60  # blocks in blocks; a list counts for two
LEAST_COLUMN = 6  # a table with less for each column is shown row by row
LISTS = ("bullet_list", "ordered_list")
_WIDE = "\u2e80-\u9fff\ua000-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_OPENING, _CLOSING = "「『（《〈【〔“‘", "、。，．：；？！」』）》〉】〕”’…"
# What is never broken: a word with its blanks, or one character of a script without blanks with the signs that cling to it.
_UNIT = re.compile(rf"[{_OPENING}]*[{_WIDE}][{_CLOSING}\u3099\u309a\ufe00-\ufe0f]*\s*|[^\s{_WIDE}]+[{_CLOSING}]*\s*|\s+")
_HEADINGS = {"h1": Style.parse("bold underline magenta"), "h2": Style.parse("bold magenta")}
_BOLD, _QUOTE, _CODE, _URL, _DIM = (Style.parse(style) for style in ("bold", "green", "cyan", "blue", "dim"))
_INLINE = {"em": Style.parse("italic"), "strong": _BOLD, "s": Style.parse("strike")}


class Rendered(NamedTuple):
    """Lines, and how many of them no text that comes below can change."""

    lines: list[Text]
    final: int = 0


class Resumed(NamedTuple):
    """What a page must know of the text above it, which is shown already.

    `begun`: there is some; `number`: of the list item that the page begins with; `code`: the lines above in its first block.
    """

    begun: bool = False
    number: int | None = None
    code: Above | None = None

    @property
    def new_block(self) -> bool:
        """Whether the page begins with a block of its own, not with more of the one above."""
        return self.number is None and self.code is None


NEW = Resumed()


class Markdown:
    """Makes pages from source; shares the parser and the colours of code between them."""

    def __init__(self, *, colour: bool = True) -> None:
        self.colour = colour
        self.parser = MarkdownIt("commonmark", {"maxNesting": DEEPEST}).enable(["table", "strikethrough"]).disable("reference")
        self.colours = CodeColours()

    def page(self, source: str, resumed: Resumed = NEW) -> "Page":
        return Page(self, source, resumed)


class Page:
    """Parsed Markdown that can be laid out for any width."""

    def __init__(self, markdown: Markdown, source: str, resumed: Resumed) -> None:
        self._markdown = markdown
        self._resumed = resumed
        self.source_lines = source.split("\n")
        self.blocks: Sequence[SyntaxTreeNode] = SyntaxTreeNode(markdown.parser.parse(source)).children

    def layout(self, width: int) -> Rendered:
        """All blocks, with blank lines between them."""
        lines: list[Text] = []
        final = 0
        for block in self.blocks:
            first = block is self.blocks[0]
            shown = self._block(block, max(width, LEAST_ROOM), self._resumed if first else NEW)
            if shown.lines and (lines or self._resumed.begun) and (self._resumed.new_block or not first):
                lines.append(Text())
            final = len(lines) + shown.final
            lines += shown.lines
        return Rendered(lines, final)

    def _blank_before(self, node: SyntaxTreeNode) -> bool:
        """Whether the source has a blank line above this block."""
        line, _ = node.map or (0, 0)
        return line > 0 and not self.source_lines[line - 1].strip(" \t>")

    def first_number(self, node: SyntaxTreeNode) -> int:
        """The number of a list's first item on this page."""
        resumes = node is self.blocks[0] and self._resumed.number is not None
        return self._resumed.number or 0 if resumes else int(node.attrs.get("start", 1))

    def code(self, node: SyntaxTreeNode, resumed: Resumed) -> tuple[list[Text], Above]:
        """A code block's lines in colours, without empty ones at the end; and what is above a line below them."""
        above = resumed.code or Above()
        lines = []
        content = node.content.expandtabs(4).rstrip(" \n")
        for source in re.split(" *\n", content) if content else ():
            line, above = self._markdown.colours.line(node.info if node.type == "fence" else "", above, source)
            lines.append(line)
        return lines, above

    def _block(self, node: SyntaxTreeNode, width: int, resumed: Resumed = NEW) -> Rendered:
        match node.type:
            case "bullet_list" | "ordered_list":
                return self._list(node, width)
            case "blockquote":
                mark = Text("▌ ", _QUOTE)
                return _marked(mark, mark, self._children(node, _room(width, mark.plain)), width)
            case "list_item":
                return self._children(node, width)
            case "fence" | "code_block" | "html_block":
                folded = [part for line in self.code(node, resumed)[0] for part in _folded(line, width)]
                return Rendered(folded, len(folded))
            case "table":
                return Rendered(self._table(node, width))
            case "hr":
                return Rendered([Text("─" * width, _DIM)])
            case "heading":
                return Rendered(wrapped(self._text(node, _HEADINGS.get(node.tag, _BOLD)), width))
            case _:
                return Rendered(wrapped(self._text(node), width))

    def _children(self, node: SyntaxTreeNode, width: int) -> Rendered:
        return self._stacked(node, lambda _, child: self._block(child, width))

    def _list(self, node: SyntaxTreeNode, width: int) -> Rendered:
        def item(index: int, child: SyntaxTreeNode) -> Rendered:
            mark = "• " if node.type == "bullet_list" else f"{self.first_number(node) + index}. "
            inner = self._block(child, _room(width, mark))
            return _marked(Text(mark, _QUOTE), Text(" " * len(mark)), inner, width)

        return self._stacked(node, item)

    def _stacked(self, node: SyntaxTreeNode, render: Callable[[int, SyntaxTreeNode], Rendered]) -> Rendered:
        lines: list[Text] = []
        final = 0
        for index, child in enumerate(node.children):
            shown = render(index, child)
            if lines and shown.lines and self._blank_before(child):
                lines.append(Text())
            final = len(lines) + shown.final
            lines += shown.lines
        return Rendered(lines, final)

    def _table(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        rows = [row.children for part in node.children for row in part.children]
        heads = [self._text(cell, _BOLD) for cell in rows[0]]
        body = [[self._text(cell) for cell in row] for row in rows[1:]]
        if width < LEAST_COLUMN * len(heads):
            return _records(heads, body, width)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, border_style=_DIM, header_style=_BOLD)
        for head, cell in zip(heads, rows[0], strict=True):
            table.add_column(head, justify=_justified(cell), overflow="fold")
        for row in body:
            table.add_row(*row)
        console = Console(file=io.StringIO(), width=width, height=1, legacy_windows=False)
        return [_line(segments) for segments in console.render_lines(table, pad=False)]

    def _text(self, node: SyntaxTreeNode, style: Style | None = None) -> Text:
        """The inline content of a block."""
        text = Text()
        for inline in node.children:
            self._add(text, inline, style or Style.null())
        return text if node.children else Text(_clean(node.content))

    def _add(self, text: Text, node: SyntaxTreeNode, style: Style) -> None:
        match node.type:
            case "softbreak" | "hardbreak":  # models break lines where they mean it
                text.append("\n")
            case "code_inline":
                text.append(_clean(node.content if self._markdown.colour else f"`{node.content}`"), style + _CODE)
            case "html_inline" if node.content.lower().replace(" ", "") in ("<br>", "<br/>"):
                text.append("\n")
            case "link" | "image":
                self._add_link(text, node, style)
            case _ if node.children:
                for child in node.children:
                    self._add(text, child, style + _INLINE.get(node.type, Style.null()))
            case _:
                text.append(_clean(node.content), style)

    def _add_link(self, text: Text, node: SyntaxTreeNode, style: Style) -> None:
        """The address is shown, not hidden in an escape sequence: one sees where a link leads."""
        start, address = len(text), _clean(str(node.attrs.get("href") or node.attrs.get("src") or ""))
        for child in node.children:
            self._add(text, child, style)
        shown = text.plain[start:]
        text.stylize(_URL, start)
        if address.removeprefix("mailto:") != shown:
            text.append(f" ({address})" if shown else address, style + _DIM)


def wrapped(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells, broken between words, or between any two characters of a script without blanks."""
    lines = [part for line in text.split("\n", allow_blank=True) for part in line.divide(_breaks(line.plain, width))]
    for line in lines:
        line.rstrip()
    return lines


def _breaks(plain: str, width: int) -> list[int]:
    offsets, column = [], 0
    for unit in _UNIT.finditer(plain):
        word, start = unit.group(), unit.start()
        cells = cell_len(word.rstrip())
        if column and column + cells > width:
            offsets.append(start)
            column = 0
        if cells > width:
            *full, word = chop_cells(word.rstrip(), width)
            for part in full:
                start += len(part)
                offsets.append(start)
        column += cell_len(word)
    return offsets


def _folded(line: Text, width: int) -> list[Text]:
    """Code is cut at the margin, wherever that is: its blanks mean something."""
    offsets, at = [], 0
    for part in chop_cells(line.plain, width)[:-1]:
        at += len(part)
        offsets.append(at)
    return list(line.divide(offsets))


def _marked(first: Text, rest: Text, inner: Rendered, width: int) -> Rendered:
    if width - len(first) < LEAST_ROOM:
        return Rendered(inner.lines or [Text()], inner.final)
    lines = inner.lines or [Text()]
    marked = [Text.assemble(rest if index else first, line) for index, line in enumerate(lines)]
    for line in marked:
        line.rstrip()
    return Rendered(marked, inner.final)


def _room(width: int, mark: str) -> int:
    return width - len(mark) if width - len(mark) >= LEAST_ROOM else width


def _records(heads: Sequence[Text], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """A table too wide for columns: each row as a paragraph of "head: value" lines."""
    lines: list[Text] = []
    for row in rows:
        lines += [Text()] * bool(lines)
        for head, cell in zip(heads, row, strict=True):
            lines += wrapped(Text.assemble(head, ": ", cell), width)
    return lines or wrapped(Text(", ").join(heads), width)


def _justified(cell: SyntaxTreeNode) -> JustifyMethod:
    style = str(cell.attrs.get("style", ""))
    return "right" if "right" in style else "center" if "center" in style else "left"


def _line(segments: Sequence[Segment]) -> Text:
    line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
    line.rstrip()
    return line


def _clean(text: str) -> str:
    """Character references may have made control characters."""
    return EscapeStripper().feed(text).replace("\n", " ").expandtabs(4)

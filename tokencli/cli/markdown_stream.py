"""Markdown that comes in pieces: which of its lines can no longer change, and which may. Knows no terminal and no time.

Only the source of the open block (in a list: of its last item; in code: of its last lines) is kept and parsed again.
"""

import re

from rich.text import Text

from tokencli.cli.markdown import LISTS, Markdown, Page, Resumed

_MARKS = re.compile(r"[\s\-=*_+#>|:`~.)\d]*")  # the beginning of a line that may yet become anything


class MarkdownStream:
    """Gives each line out once it is final. Finality is judged by whole source lines: half a line may mean anything."""

    def __init__(self, markdown: Markdown) -> None:
        self._markdown = markdown
        self._source = ""
        self._resumed = Resumed()
        self._settled = 0  # length of the source whose final lines were given out
        self._given = 0  # lines of this source that were given out, at `_width`
        self._width = 0

    def feed(self, text: str) -> None:
        self._source += text

    def final(self, width: int) -> list[Text]:
        """Lines that can no longer change, if there are new ones."""
        self._fit(width)
        whole = self._source.rfind("\n") + 1
        if whole == self._settled:
            return []
        page = self._page(whole)
        lines, final = page.layout(width)
        new = lines[self._given : final]
        self._cut(page, whole, begun=self._resumed.begun or bool(final))
        self._count(width)
        return new

    def open(self, width: int) -> list[Text]:
        """What is below the final lines for now."""
        self._fit(width)
        whole = self._source.rfind("\n") + 1
        half = self._source[whole:]
        return self._page(whole if _MARKS.fullmatch(half) else None).layout(width).lines[self._given :]

    def end(self, width: int) -> list[Text]:
        """Everything that is left: there is no more text."""
        self._fit(width)
        return self._page(None).layout(width).lines[self._given :]

    def _page(self, length: int | None) -> Page:
        return self._markdown.page(self._source[:length], self._resumed)

    def _fit(self, width: int) -> None:
        if width != self._width:
            self._width = width
            self._count(width)

    def _count(self, width: int) -> None:
        self._given = self._page(self._settled).layout(width).final

    def _cut(self, page: Page, whole: int, begun: bool) -> None:
        """Drop the source of what is final: up to the last block, or into it where it can be taken up again."""
        self._settled = whole
        if not page.blocks:
            return
        last = page.blocks[-1]
        start, _ = last.map or (0, 0)
        keep = page.source_lines[start:]
        if len(page.blocks) > 1:
            self._resumed = Resumed(begun)
        if last.type in LISTS and len(last.children) > 1:
            item = last.children[-1]
            number = page.first_number(last) + len(last.children) - 1
            keep = page.source_lines[(item.map or (0, 0))[0] :]
            self._resumed = Resumed(begun, number)
        elif last.type == "fence":
            lines, above = page.code(last, self._resumed)
            if lines:
                keep = keep[:1] + keep[1 + len(lines) :]
                self._resumed = Resumed(begun, code=above)
        kept = "\n".join(keep)
        self._source = kept + self._source[whole:]
        self._settled = len(kept)

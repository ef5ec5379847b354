"""An answer as Markdown: how it looks on a screen, and that streaming it gives the very screen of the whole text at once."""

import itertools
import os
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyte.screens import Char
from screens import Clock, Tty, streamed, view_on

from tokencli.cli.markdown import Markdown
from tokencli.cli.region import Region


def shown(text: str, columns: int = 40, **environ: str) -> str:
    """The screen of a text that came in one piece, in lines."""
    return "\n".join(streamed([text], columns=columns, **environ).lines())


def at_once(text: str, columns: int) -> list[list[Char]]:
    """The cells of the whole text's layout: parsed once, printed once."""
    tty = Tty(columns, 24)
    Region(tty, colour=True).draw(Markdown().page(text).layout(columns).lines, [], os.terminal_size((columns, 24)))
    return tty.cells()


def letters(lines: Iterable[str]) -> str:
    """The text of lines, wherever they were broken."""
    return "".join("".join(lines).replace("▌", "").split())


class TestLooks:
    def test_headings_paragraphs_and_inline_marks(self) -> None:
        text = "# Title\nSome **bold**, *it*, `code`,\n~~gone~~ and words that are too many for one line.\n\nSetext\n---\nEnd."
        assert shown(text) == ("Title\n\nSome bold, it, code,\ngone and words that are too many for one\nline.\n\nSetext\n\nEnd.")

    def test_marks_are_colours_and_weights(self) -> None:
        cells = {cell.data: cell for line in streamed(["# T\n\n**b** *i* `c` ~~s~~ [l](u)"]).cells() for cell in line}
        assert (cells["T"].bold, cells["T"].underscore, cells["b"].bold, cells["i"].italics) == (True, True, True, True)
        assert (cells["c"].fg, cells["s"].strikethrough, cells["l"].fg, cells["b"].fg) == ("cyan", True, "blue", "default")

    def test_lists(self) -> None:
        text = "7. seven\n8. eight\n   - nested, too long for its line\n     1) deep\n\n   more\n9. nine\n10. ten\n\n- [x] a\n* b"
        nested = "   • nested, too long for its\n     line\n     1. deep\n\n   more"
        assert shown(text, 30) == f"7. seven\n8. eight\n{nested}\n9. nine\n10. ten\n\n• [x] a\n\n• b"

    def test_a_loose_list_stands_apart_where_its_source_does(self) -> None:
        assert shown("- a\n\n- b\n- c\n") == "• a\n\n• b\n• c"

    def test_quotes(self) -> None:
        assert shown("> one\n> - two\n>\n> > three\nlazy") == "▌ one\n▌ • two\n▌\n▌ ▌ three\n▌ ▌ lazy"

    def test_code_is_not_wrapped_at_words_and_keeps_its_blanks(self) -> None:
        assert shown("```\nif x:\n\n\treturn a_long_name\n  \n\n```\nend", 20) == "if x:\n\n    return a_long_na\nme\n\nend"

    def test_code_is_coloured_with_regard_to_the_lines_above(self) -> None:
        cells = streamed(['```python\ndef f():\n    x = """a\n    def\n    """\n```']).cells()
        assert [cells[0][0].fg, cells[0][4].fg, cells[2][4].fg] == ["brightblue", "brightgreen", "brown"]
        assert {cell.fg for line in streamed(["```nosuch\ndef\n```"]).cells() for cell in line} == {"cyan"}

    def test_tables(self) -> None:
        text = "| 名字 | Count | Sign |\n|:--|--:|:-:|\n| 你好 | 1 | 🙂 |\n| b `c` | 22 | **x** |\n"
        assert shown(text) == ("名字   Count   Sign\n───────────────────\n你好       1    🙂\nb c       22    x")

    def test_a_table_without_room_is_shown_row_by_row(self) -> None:
        text = "| a | b | c | d |\n|-|-|-|-|\n| 1 | 2 | 3 | a long cell of words |\n| 5 | 6 | 7 | 8 |\n"
        assert shown(text, 20) == "a: 1\nb: 2\nc: 3\nd: a long cell of\nwords\n\na: 5\nb: 6\nc: 7\nd: 8"

    def test_links_show_where_they_lead(self) -> None:
        text = "[here](http://a.b/c) <http://d.e> <me@f.g> ![pic](h.png)\n[r]: http://x.y\n[r]"
        assert shown(text, 80) == ("here (http://a.b/c) http://d.e me@f.g pic (h.png)\n[r]: http://x.y\n[r]")

    def test_html_and_what_looks_like_it_is_shown_as_it_is(self) -> None:
        assert shown("List<String> a<br>b\n\n<div>\n*x*\n</div>\n\nend") == "List<String> a\nb\n\n<div>\n*x*\n</div>\n\nend"

    def test_markup_of_the_drawing_library_means_nothing(self) -> None:
        assert shown("[bold]x[/bold] [red]y :smile:\n\n```\n[/]\n```") == "[bold]x[/bold] [red]y :smile:\n\n[/]"

    def test_scripts_without_blanks_are_broken_anywhere_but_before_a_closing_sign(self) -> None:
        assert shown("使用 Python 编写一个很长的程序，它可以处理。「是的」", 20).split("\n") == [
            "使用 Python 编写一个",
            "很长的程序，它可以处",
            "理。「是的」",
        ]

    def test_a_word_too_long_is_broken(self) -> None:
        assert shown("see " + "x" * 45, 20) == "see\n" + "x" * 20 + "\n" + "x" * 20 + "\nxxxxx"

    def test_deep_nesting_keeps_its_text(self) -> None:
        deep = "".join("  " * level + f"- level{level}\n" for level in range(12))
        assert [line.strip(" •") for line in shown(deep, 20).split("\n")] == [f"level{level}" for level in range(12)]

    def test_no_color_keeps_the_layout(self) -> None:
        tty = streamed(["# T\n- `c` **b**\n```py\nx = 1\n```"], NO_COLOR="1")
        assert tty.lines() == ["T", "", "• `c` b", "", "x = 1"]
        assert {(cell.fg, cell.bg) for line in tty.cells() for cell in line} == {("default", "default")}
        assert tty.cells()[0][0].bold


NASTY = {
    "nested lists": "- a\n  - b\n\n    - c\n  - d\n\n    para\n- e\n",
    "a fence in a list": "1. do\n   ```sh\n   ls\n\n   # more\n   ```\n\n2. then\n",
    "an unclosed fence": "text\n```python\ndef f():\n    '''doc\n\n    more\n",
    "a table": "a table:\n| 名 | b |\n|--|:-:|\n| 你好 | 👩‍💻 🇩🇪 |\n| `x|y` | é |\n\nend\n",
    "setext headings": "Title\n===\nbelow\nSub\n---\n- a\n---\n",
    "link references": "[r] and [s]\n\n[r]: http://x.y\n[s]: <z>\n",
    "HTML": "<div>\n<b>x</b>\n\n</div>\n<!-- a\n\nb -->\n\n<pre>\n\n*x*\n</pre>\na <i>b</i>",
    "long words": "x" * 200 + " " + "长" * 120,
    "open marks": "an `open and **open and [open(\n\nnext _one\n",
    "inline code": "run `ls -l` then ``a`b`` now",
    "CRLF": "# T\r\n\r\n- a\r\n- b\r\n\r\n```\r\nx\r\n```\r\n",
    "tabs": "-\ta\n\n\t\tcode\n\n\tb\n\n\tc\td\n",
    "loose items": "- a\n- b\n\n- c\n\n\n- d\n\n\n\nend\n",
    "numbers": "7. a\n8. b\n1. c\n10) d\n11) e\n",
    "quotes": "> a\nlazy\n> ```\n> x\n\n> b\n>\n> > c\n",
    "empty blocks": "```\n```\n-\n-\n\n>\n\n```py\n\n\n```\n# \nx",
    "a comment below": "```c\nint a; /* b\nc\n*/ int d;\n```\n```js\n/* x\n```\n",
}
LINES = tuple(sorted({line for text in NASTY.values() for line in text.split("\n")}))
sources = st.lists(st.sampled_from(LINES), max_size=14).map("\n".join)


@st.composite
def pieces_of(draw: st.DrawFn) -> list[str]:
    text = draw(sources)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


class TestStreaming:
    @pytest.mark.parametrize("name", NASTY)
    @pytest.mark.parametrize(("columns", "rows"), [(20, 5), (61, 7), (100, 40)])
    def test_letter_by_letter_gives_the_screen_of_the_whole(self, name: str, columns: int, rows: int) -> None:
        text = NASTY[name]
        assert streamed(text, columns=columns, rows=rows).cells() == at_once(text.replace("\r", ""), columns)

    @settings(max_examples=150)
    @given(pieces_of(), st.integers(20, 100), st.integers(5, 40), st.sampled_from([0.01, 0.05]))
    def test_any_pieces_in_any_window_give_the_screen_of_the_whole(
        self, pieces: list[str], columns: int, rows: int, seconds: float
    ) -> None:
        tty = streamed(pieces, columns=columns, rows=rows, seconds=seconds)
        assert tty.cells() == at_once("".join(pieces).replace("\r", ""), columns)

    @given(sources, st.integers(20, 100))
    @example("> a quoted text of words", 20)
    def test_no_line_is_longer_than_the_screen_and_no_text_is_lost(self, text: str, columns: int) -> None:
        lines, wide = (Markdown().page(text).layout(width).lines for width in (columns, 1000))
        assert [line.plain for line in lines if line.cell_len > columns] == []
        if not any(mark in text for mark in ("|--", "---", "- -")):  # rules and tables are made for the width
            assert letters(line.plain for line in lines) == letters(line.plain for line in wide)

    @settings(max_examples=60)
    @given(
        st.lists(
            st.sampled_from(["- one two three", "some words in a line", "", "```", "> quoted text", "1. an item"]), max_size=12
        ),
        st.integers(0, 200),
        st.integers(20, 60),
        st.integers(20, 60),
    )
    @example(["some words in a line"] * 3, 62, 60, 20)
    def test_a_resize_loses_and_repeats_no_text(self, lines: list[str], at: int, before: int, after: int) -> None:
        text, tty, clock = "\n".join(lines), Tty(before, 20), Clock()
        view = view_on(tty, clock)
        for index, letter in enumerate(text):
            if index == at:
                tty.resize(after, 20)
            view.feed("answer", letter)
            clock.time += 0.05
        view.finish()
        whole = [line.plain for line in Markdown().page(text).layout(80).lines]
        assert letters(tty.lines()) == letters(whole)

    def test_code_scrolls_out_while_it_grows(self) -> None:
        tty, clock = Tty(40, 10), Clock()
        view = view_on(tty, clock)
        for number in range(30):
            view.feed("answer", "- ```\n" * (number == 0) + f"  line {number}\n")
            clock.time += 1
            assert f"• line 0\n{chr(10).join(f'  line {n}' for n in range(1, number + 1))}".strip() == "\n".join(tty.lines())

    def test_a_paragraph_taller_than_the_screen_shows_its_end_and_then_all(self) -> None:
        tty, clock = Tty(20, 5), Clock()
        view = view_on(tty, clock)
        for number in range(10, 30):
            view.feed("answer", f"words and number {number} ")
            clock.time += 1
        assert tty.lines() == [f"words and number {number}" for number in range(26, 30)]
        view.feed("answer", "\n\nnext\n")
        view.finish()
        assert tty.lines() == [*(f"words and number {number}" for number in range(10, 30)), "", "next"]

    def test_half_a_line_of_marks_is_not_drawn_yet(self) -> None:
        tty, clock = Tty(), Clock()
        view = view_on(tty, clock)
        for piece in ("Here:\n", "-", "-", "-"):
            view.feed("answer", piece)
            clock.time += 1
            assert not tty.cells()[0][0].bold, "no heading that comes and goes"
        view.finish()
        assert tty.cells()[0][0].bold

    def test_an_unchanged_beginning_is_not_written_again(self) -> None:
        tty, clock = Tty(), Clock()
        view = view_on(tty, clock)
        for piece in ("first line\n", "second", " line"):
            view.feed("answer", piece)
            clock.time += 1
        assert tty.getvalue().count("first") == 1

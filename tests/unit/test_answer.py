"""One answer on a terminal: reasoning, status, how often it is drawn; and the plain way where a terminal cannot."""

import io
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screens import Clock, Tty, lines_of, streamed, view_on

from tokencli.cli.answer import PlainView, window
from tokencli.cli.terminal import Terminal
from tokencli.core import TextKind

THOUGHT: tuple[tuple[TextKind, str], ...] = (
    ("reasoning", "why\n- *so*"),
    ("reasoning", " it is"),
    ("answer", "# Yes\n"),
    ("answer", "indeed"),
)
OURS = re.compile(r"\x1b\[(?:[\d;]*m|\d+A|J|\?(?:7|2026)[hl])|\r\n|\r(?=\x1b\[J)")  # all that the view itself may send


class TestThinking:
    def test_reasoning_is_shown_dimmed_as_it_is_and_the_answer_below_it(self) -> None:
        assert lines_of(THOUGHT) == ["why", "- *so* it is", "", "Yes", "", "indeed"]
        tty = Tty()
        view_on(tty, Clock()).feed("reasoning", "why")
        assert "\x1b[2mwhy\x1b[0m" in tty.getvalue()

    def test_long_reasoning_is_wrapped_at_words(self) -> None:
        assert lines_of([("reasoning", "word " * 20)]) == ["word " * 15 + "word", "word word word word"]

    def test_hidden_reasoning_is_a_line_with_its_time(self) -> None:
        tty, clock = Tty(), Clock()
        view = view_on(tty, clock, thinking="hide")
        clock.time = 100
        seen = []
        for kind, text in THOUGHT:
            view.feed(kind, text)
            seen.append(tty.lines())
            clock.time += 12
        assert seen[:3] == [["thinking 0 s ..."], ["thinking 12 s ..."], ["thought for 24 s", "", "Yes"]]
        view.finish()
        assert tty.lines() == ["thought for 24 s", "", "Yes", "", "indeed"]

    def test_an_answer_cut_short_in_its_reasoning(self) -> None:
        assert lines_of(THOUGHT[:2]) == ["why", "- *so* it is"]
        assert lines_of(THOUGHT[:2], thinking="hide") == ["thought for 2 s"]

    def test_nothing_is_nothing(self) -> None:
        tty = Tty()
        view_on(tty, Clock()).finish()
        assert tty.getvalue() == ""


class TestDrawing:
    @settings(max_examples=50)
    @given(st.lists(st.floats(0, 0.1), min_size=1, max_size=150))
    def test_at_most_thirty_times_a_second_and_at_the_end(self, gaps: list[float]) -> None:
        tty, clock = Tty(), Clock()
        view = view_on(tty, clock)
        times: list[float] = []
        for number, gap in enumerate(gaps):
            before = tty.drawings
            view.feed("answer", f"{number} ")
            times += [clock.time] * (tty.drawings - before)
            clock.time += gap
        assert all(later - earlier >= 1 / 30 - 1e-9 for earlier, later in itertools.pairwise(times))
        view.finish()
        assert " ".join(tty.lines()).split() == [str(number) for number in range(len(gaps))]

    def test_where_a_drawing_is_slow_there_are_fewer(self) -> None:
        class Slow(Tty):
            def write(self, text: str) -> int:
                clock.time += 0.1
                return super().write(text)

        clock = Clock()
        tty = Slow()
        view = view_on(tty, clock)
        while clock.time < 6:
            view.feed("answer", "x ")
            clock.time += 0.01
        assert 8 <= tty.drawings <= 12

    def test_the_cursor_ends_at_the_beginning_of_a_line(self) -> None:
        for text in ("one", "one\n", "- a\n\n", "```\nx"):
            tty = streamed([text])
            assert (tty.screen.cursor.x, tty.screen.cursor.y) == (0, 1), text

    def test_a_status_goes_away_when_text_comes(self) -> None:
        tty, clock = Tty(), Clock()
        view = view_on(tty, clock)
        seen = []
        for text in ("loading  40 %", "reading the prompt: 512 of 2048 tokens"):
            view.status(text)
            seen.append(tty.lines())
            clock.time += 1
        assert seen == [["loading  40 %"], ["reading the prompt: 512 of 2048 tokens"]]
        view.feed("answer", "Yes, ")
        assert tty.lines() == ["Yes,"]
        clock.time += 1
        view.status("loading  10 %")
        assert tty.lines() == ["Yes,", "loading  10 %"]
        view.finish()
        assert tty.lines() == ["Yes,"]

    def test_a_note_amid_the_answer_stands_above_the_open_block(self) -> None:
        tty, clock = Tty(), Clock()
        view = view_on(tty, clock)
        view.feed("answer", "one\n\n- two\n")
        view.note("note: the engine\x1b[2J was started again")
        clock.time += 1
        view.feed("answer", "  and three\n")
        view.abandon()
        assert tty.lines() == ["one", "", "note: the engine was started again", "• two", "  and three"]

    def test_a_character_wider_for_the_terminal_than_for_us_shifts_no_row(self) -> None:
        tty = streamed(["👩‍👩‍👧‍👦" * 10, "\n", "b", "c", "\n\nend"], columns=20, rows=6)
        assert tty.lines()[-3:] == ["bc", "", "end"]


ESCAPES = (
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b",
    "[",
    "\x9b1A",
    "\x1bP",
    "\x07",
    "\r",
    "\x08",
    "&#27;[2J",
    "&#13;",
    "&#12;",
    "%1b[2J",
)
WORDS = ("a ", "**b**", "`", "[l](", ")", "\n", "- ", "```py\n", "| x |\n|--|\n", "<", "# ")


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(ESCAPES + WORDS), max_size=16).map("".join),
    st.integers(1, 7),
    st.sampled_from(["answer", "reasoning"]),
)
def test_no_control_character_of_the_model_reaches_the_terminal(text: str, length: int, kind: TextKind) -> None:
    tty, clock = Tty(), Clock()
    view = view_on(tty, clock)
    for start in range(0, len(text), length):
        view.feed(kind, text[start : start + length])
        clock.time += 0.05
    view.finish()
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", OURS.sub("", tty.getvalue()))


class Screen(io.StringIO):
    """A terminal without a size."""

    def isatty(self) -> bool:
        return True


class Narrow(io.TextIOWrapper):
    """A terminal with an old encoding."""

    def isatty(self) -> bool:
        return True


class TestPlain:
    TEXT = "# T\n- **b** \x1b[31m[x](y)"

    @pytest.mark.parametrize(
        ("out", "plain", "environ", "shown"),
        [
            (Screen, True, {}, "# T\n- **b** [x](y)\n"),
            (Screen, False, {"TERM": "dumb"}, "# T\n- **b** [x](y)\n"),
            (io.StringIO, False, {}, TEXT + "\n"),
        ],
    )
    def test_the_text_passes_as_it_is(self, out: type[io.StringIO], plain: bool, environ: dict[str, str], shown: str) -> None:
        stream = out()
        view = view_on(stream, Clock(), plain=plain, **environ)
        for letter in self.TEXT:
            view.feed("answer", letter)
        view.finish()
        assert stream.getvalue() == shown

    @pytest.mark.parametrize(("encoding", "shown"), [("cp1252", "é ?? * “x”\n"), ("ascii", "? ?? * ?x?\n")])
    def test_an_old_encoding_is_plain_and_what_it_lacks_is_a_question_mark(self, encoding: str, shown: str) -> None:
        raw = io.BytesIO()
        stream = Narrow(raw, encoding=encoding, errors="replace", newline="")
        terminal = Terminal(io.StringIO(), stream, io.StringIO(), {})
        assert not terminal.draws_answer
        view = PlainView(terminal)
        view.feed("answer", "é 你好 * “x”")
        view.finish()
        assert raw.getvalue().decode(encoding) == shown

    def test_it_streams(self) -> None:
        stream = io.StringIO()
        view = view_on(stream, Clock())
        view.feed("answer", "a")
        assert stream.getvalue() == "a"

    @pytest.mark.parametrize(("thinking", "err"), [("show", "why\n- *so* it is\n\n"), ("hide", "thought for 2 s\n\n")])
    def test_reasoning_goes_to_stderr(self, thinking: str, err: str) -> None:
        out, errors, clock = io.StringIO(), io.StringIO(), Clock()
        view = view_on(out, clock, err=errors, thinking=thinking)  # type: ignore[arg-type]
        for kind, text in THOUGHT:
            view.feed(kind, text)
            clock.time += 1
        view.finish()
        assert (out.getvalue(), errors.getvalue()) == ("# Yes\nindeed\n", err)

    def test_a_status_is_for_a_terminal_and_never_amid_the_text(self) -> None:
        out, err = Screen(), Screen()
        view = view_on(out, Clock(), plain=True, err=err)
        view.status("loading")
        view.feed("answer", "a")
        view.status("loading")
        view.finish()
        assert err.getvalue() == "\r\x1b[Kloading\r\x1b[K"
        quiet = io.StringIO()
        view_on(Screen(), Clock(), plain=True, err=quiet).status("loading")
        assert quiet.getvalue() == ""

    def test_a_note_begins_a_line(self) -> None:
        out, err = Screen(), io.StringIO()
        view = view_on(out, Clock(), plain=True, err=err)
        view.feed("answer", "a")
        view.note("note: again")
        view.feed("answer", "b\n")
        view.note("note: and again")
        view.abandon()
        assert (out.getvalue(), err.getvalue()) == ("a\nb\n\n", "note: again\nnote: and again\n")


def test_a_stream_that_knows_no_window_is_80_by_24() -> None:
    assert tuple(window(io.StringIO())) == (80, 24)

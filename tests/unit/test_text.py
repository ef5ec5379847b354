"""What a person gets to see of a model's bytes: whole characters, nothing after a stop string, no terminal commands."""

import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tokencli.decode.text import EscapeStripper, ReasoningSplitter, StopFilter, Utf8Stream


@st.composite
def in_pieces(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> list[str]:
    """A text of `texts`, cut anywhere; pieces may be empty."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


class TestUtf8Stream:
    @staticmethod
    def decoded(pieces: Sequence[bytes]) -> str:
        stream = Utf8Stream()
        return "".join(stream.feed(piece) for piece in pieces) + stream.flush()

    @pytest.mark.parametrize("text", ["plain", "你好，世界", "🙂 👩‍💻 🇩🇪", "naïve café", "\U0010ffff", "\0"])
    def test_a_text_split_at_any_byte_stays_whole(self, text: str) -> None:
        raw = text.encode()
        assert all(self.decoded([raw[:at], raw[at:]]) == text for at in range(len(raw) + 1))

    def test_a_code_point_comes_once_with_its_last_byte(self) -> None:
        stream = Utf8Stream()
        assert [stream.feed(bytes([byte])) for byte in "é🙂a".encode()] == ["", "é", "", "", "", "🙂", "a"]

    @given(st.lists(st.binary(max_size=8)))
    def test_any_bytes_give_what_they_give_in_one_piece(self, pieces: list[bytes]) -> None:
        assert self.decoded(pieces) == b"".join(pieces).decode("utf-8", "replace")

    @pytest.mark.parametrize(("raw", "text"), [(b"a\xffb", "a�b"), (b"\x80", "�"), (b"\xed\xa0\x80", "���"), (b"\xc0\xaf", "��")])
    def test_bytes_that_are_no_utf8_are_replaced(self, raw: bytes, text: str) -> None:
        assert self.decoded([raw]) == text

    def test_flush_gives_out_a_started_code_point_once(self) -> None:
        stream = Utf8Stream()
        assert stream.feed("🙂".encode()[:3]) == ""
        assert [stream.flush(), stream.flush(), stream.feed(b"a")] == ["�", "", "a"]


class TestStopFilter:
    @staticmethod
    def shown(stops: Sequence[str], pieces: Sequence[str]) -> str:
        stop = StopFilter(stops)
        return "".join(stop.feed(piece) for piece in pieces) + stop.flush()

    @given(st.lists(st.text("ab.", max_size=4), max_size=3), in_pieces(st.text("ab.", max_size=24)))
    @example(["aab"], ["aa", "ab"])
    @example(["ab.", "b.a"], ["ab", ".a"])
    def test_the_text_is_cut_at_the_first_stop_wherever_it_is_split(self, stops: list[str], pieces: list[str]) -> None:
        stops = [stop for stop in stops if stop]
        assume(not any(inner != outer and inner in outer for inner in stops for outer in stops))
        text = "".join(pieces)
        ends = [text.find(stop) for stop in stops if stop in text]
        assert self.shown(stops, pieces) == text[: min(ends, default=len(text))]

    def test_a_stop_inside_another_gives_the_same_cut_for_any_split(self) -> None:
        splits = (["xabc"], ["xa", "bc"], ["xab", "c"], ["x", "a", "b", "c"])
        assert len({self.shown(["abc", "b"], pieces) for pieces in splits}) == 1

    @given(in_pieces(st.text("ab", max_size=16)))
    def test_the_longest_tail_that_may_begin_a_stop_is_held_back(self, pieces: list[str]) -> None:
        stop = StopFilter(["abba"])
        text = shown = ""
        for piece in pieces:
            text += piece
            shown += stop.feed(piece)
            held = max(length for length in range(4) if text.endswith("abba"[:length]))
            assert stop.stopped or shown == text[: len(text) - held]

    def test_only_what_may_begin_a_stop_is_held_back(self) -> None:
        stop = StopFilter(["beta gamma"])
        assert [stop.feed("alpha beta"), stop.feed(" "), stop.feed("delta")] == ["alpha ", "", "beta delta"]

    def test_held_back_text_is_not_lost_at_the_end(self) -> None:
        stop = StopFilter(["beta gamma"])
        assert [stop.feed("say beta"), stop.flush(), stop.flush()] == ["say ", "beta", ""]

    def test_nothing_comes_after_a_stop(self) -> None:
        stop = StopFilter(["END"])
        assert [stop.feed("a END b"), stop.stopped, stop.feed("c"), stop.flush()] == ["a ", True, "", ""]

    @pytest.mark.parametrize("stops", [[], [""], ["", ""]])
    def test_without_stops_everything_passes_at_once(self, stops: list[str]) -> None:
        stop = StopFilter(stops)
        assert [stop.feed("a"), stop.feed(""), stop.flush(), stop.stopped] == ["a", "", "", False]

    def test_a_stop_may_be_any_script(self) -> None:
        assert self.shown(["停止🛑"], ["前停", "止", "🛑后"]) == "前"


def reasoning_by_the_book(text: str, inside: bool) -> tuple[str, str]:
    """(reasoning, answer) of a whole reply, as the docstring of ReasoningSplitter defines them."""
    if not inside and not text.lstrip().startswith("<think>"):
        return "", text
    thoughts, closed, answer = (text if inside else text.lstrip().removeprefix("<think>")).partition("</think>")
    return thoughts.strip() if closed else thoughts.lstrip(), answer.lstrip()


class TestReasoningSplitter:
    @staticmethod
    def split(pieces: Sequence[str], inside: bool = False) -> tuple[str, str]:
        splitter = ReasoningSplitter(inside=inside)
        parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.flush()
        assert all(text for _, text in parts), "no empty parts"
        reasoning, answer = ("".join(text for kind, text in parts if kind == wanted) for wanted in ("reasoning", "answer"))
        assert parts == sorted(parts, key=lambda part: part[0] == "answer"), "no reasoning after the answer began"
        return reasoning, answer

    FRAGMENTS = ("<think>", "</think>", "<", "</", "think>", "<thin", " ", "\n\n", "why", "so ", "你好 🙂")

    @given(in_pieces(st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join)), st.booleans())
    @example(["<think>why </", "th", "ink> so"], False)
    @example(["why \n", " </think>", "\n", "so"], True)
    def test_any_split_gives_what_the_whole_gives(self, pieces: list[str], inside: bool) -> None:
        assert self.split(pieces, inside) == reasoning_by_the_book("".join(pieces), inside)

    @pytest.mark.parametrize(
        ("text", "reasoning", "answer"),
        [
            ("<think>why</think>so", "why", "so"),
            ("\n <think>\n why \n</think>\n\n so \n", "why", "so \n"),
            ("<think>a < b\n\n</th</think>c", "a < b\n\n</th", "c"),
            ("<think></think>so", "", "so"),
            ("<think>why</think>", "why", ""),
            ("plain", "", "plain"),
            (" \n plain ", "", " \n plain "),
            ("The tag <think> opens, </think> closes", "", "The tag <think> opens, </think> closes"),
            ("<think>a</think>b <think>c</think>d", "a", "b <think>c</think>d"),
            ("<think>never closed ", "never closed ", ""),
            ("<think>", "", ""),
            ("<thi", "", "<thi"),
            ("<think>why</thi", "why</thi", ""),
            ("", "", ""),
        ],
    )
    def test_reasoning_stands_between_tags_at_the_start_alone(self, text: str, reasoning: str, answer: str) -> None:
        assert self.split([text]) == self.split(list(text)) == (reasoning, answer)

    @pytest.mark.parametrize(
        ("text", "reasoning", "answer"), [("\nwhy\n</think>\n\nso", "why", "so"), ("why", "why", ""), ("</think>so", "", "so")]
    )
    def test_a_prompt_may_end_inside_the_tag(self, text: str, reasoning: str, answer: str) -> None:
        assert self.split([text], inside=True) == self.split(list(text), inside=True) == (reasoning, answer)

    @given(in_pieces(st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join)), st.booleans())
    def test_nothing_but_tags_and_white_space_is_lost(self, pieces: list[str], inside: bool) -> None:
        reasoning, answer = self.split(pieces, inside)
        text = "".join(pieces)
        if inside or text.lstrip().startswith("<think>"):
            text = (text if inside else text.lstrip().removeprefix("<think>")).replace("</think>", "", 1)
        assert "".join((reasoning + answer).split()) == "".join(text.split())

    def test_text_is_held_back_only_while_it_may_be_a_tag(self) -> None:
        splitter = ReasoningSplitter()
        feeds = ["<thi", "nk>why", " not</", "em", "</think>", "so"]
        expected = [[], [("reasoning", "why")], [("reasoning", " not")], [("reasoning", "</em")], [], [("answer", "so")]]
        assert [splitter.feed(text) for text in feeds] == expected

    def test_the_tags_are_the_models_own(self) -> None:
        splitter = ReasoningSplitter("[R]", "[/R]")
        assert splitter.feed("[R]why[/R]<think>") == [("reasoning", "why"), ("answer", "<think>")]


ESCAPES = {
    "colour": "\x1b[1;31m",
    "no parameters": "\x1b[m",
    "cursor": "\x1b[2;5H",
    "erase": "\x1b[2J",
    "private mode": "\x1b[?25l",
    "intermediate": "\x1b[!p",
    "clipboard, bell": "\x1b]52;c;ZXZpbA==\x07",
    "clipboard, ST": "\x1b]52;c;ZXZpbA==\x1b\\",
    "title": "\x1b]0;你好 title\x07",
    "hyperlink opens": "\x1b]8;id=1;https://evil.example/?a=b\x1b\\",
    "hyperlink closes": "\x1b]8;;\x1b\\",
    "PM": "\x1b^hidden\x1b\\",
    "APC": "\x1b_Ga=T;AAAA\x1b\\",
    "save cursor": "\x1b7",
    "reset": "\x1bc",
    "keypad": "\x1b=",
    "character set": "\x1b(0",
    "8-bit CSI": "\x9b31m",
    "8-bit OSC": "\x9d52;c;ZXZpbA==\x9c",
    "8-bit OSC, bell": "\x9d52;c;ZXZpbA==\x07",
    "8-bit DCS": "\x901$r0m\x9c",
    "8-bit SOS": "\x98hidden\x9c",
    "8-bit PM": "\x9ehidden\x9c",
    "8-bit APC": "\x9fhidden\x9c",
    "8-bit index": "\x84",
    "bell": "\x07",
    "backspace": "\x08",
    "delete": "\x7f",
    "NUL": "\0",
    "vertical tab": "\x0b",
    "form feed": "\x0c",
    "carriage return": "\r",
}
SPLIT_STRINGS = {"DCS": "\x1bP1$r0m\x1b\\", "SOS": "\x1bXhidden\x1b\\"}
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class TestEscapeStripper:
    @staticmethod
    def visible(pieces: Sequence[str]) -> str:
        stripper = EscapeStripper()
        return "".join(stripper.feed(piece) for piece in pieces) + stripper.flush()

    @pytest.mark.parametrize("sequence", [*ESCAPES.values(), *SPLIT_STRINGS.values()], ids=[*ESCAPES, *SPLIT_STRINGS])
    def test_a_control_sequence_is_not_shown(self, sequence: str) -> None:
        assert self.visible([f"a{sequence}b{sequence}"]) == "ab"

    @pytest.mark.parametrize("sequence", ESCAPES.values(), ids=ESCAPES)
    def test_a_control_sequence_split_anywhere_is_not_shown(self, sequence: str) -> None:
        for at in range(len(sequence) + 1):
            assert self.visible(["a" + sequence[:at], sequence[at:] + "b"]) == "ab"
        assert self.visible(list(f"a{sequence}b")) == "ab"

    @pytest.mark.parametrize("sequence", SPLIT_STRINGS.values(), ids=SPLIT_STRINGS)
    def test_a_device_control_string_split_anywhere_is_not_shown(self, sequence: str) -> None:
        assert self.visible(list(f"a{sequence}b")) == "ab"

    @pytest.mark.parametrize("text", ["a\tb\n\nc", "你好 🙂👩‍💻", "[31m ]52;c; \\x1b P", "naïve ¿ £", ""])
    def test_text_stays(self, text: str) -> None:
        assert self.visible([text]) == self.visible(list(text)) == text

    @given(in_pieces(st.lists(st.sampled_from([*ESCAPES.values(), "a", "b\n", "你\t", "🙂", "[", "]0;"])).map("".join)))
    def test_what_is_left_does_not_depend_on_the_split(self, pieces: list[str]) -> None:
        text = "".join(pieces)
        for sequence in sorted(ESCAPES.values(), key=len, reverse=True):
            text = text.replace(sequence, "")
        assert self.visible(pieces) == text

    @given(in_pieces(st.text("\x1b\x9b\x9d\x90\x98\x9c\x07[]PX^_(0;m\\\n\t\r\x7fa🙂", max_size=40)))
    def test_no_control_character_comes_through_but_line_feed_and_tab(self, pieces: list[str]) -> None:
        assert not CONTROLS.search(self.visible(pieces))

    @pytest.mark.parametrize("pieces", [["safe\rEVIL"], ["safe\r", "EVIL"]])
    def test_shown_text_cannot_be_overwritten(self, pieces: list[str]) -> None:
        assert self.visible(pieces) == "safeEVIL"

    @pytest.mark.parametrize("pieces", [["a\r\nb"], ["a\r", "\nb"]])
    def test_line_ends_of_windows_become_ours(self, pieces: list[str]) -> None:
        assert self.visible(pieces) == "a\nb"

    def test_the_text_of_a_link_is_shown_its_address_is_not(self) -> None:
        assert self.visible(["see \x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\."]) == "see here."

    @pytest.mark.parametrize("tail", ["\x1b", "\x1b[31", "\x1b]52;c;ZXZpbA", "\x1b]0;a\x1b", "\x1b(", "\x9b", "\x9d0;a", "\r"])
    def test_an_unfinished_sequence_at_the_end_is_not_shown(self, tail: str) -> None:
        assert self.visible(["a" + tail]) == "a"

    def test_a_string_that_is_never_closed_ends_with_its_line(self) -> None:
        assert self.visible(["a\x1b]0;title", " goes on\nb"]) == "a\nb"

    @pytest.mark.parametrize(
        ("pieces", "text"),
        [
            (["a\x1b]52;c;ZXZpbA\x1b[31mb\nc"], "ab\nc"),  # ESC that starts another sequence cancels the string
            (["a\x1b]52;c;ZXZpbA", "\x1b[31mb", "\nc"], "ab\nc"),
            (["a\x1b", "\x1b[31m", "[32mb"], "a[32mb"),
            (["a\x1b]52;c;", *("AAAA" for _ in range(2000)), "\x07b"], "ab"),
        ],
        ids=["cancelled", "cancelled, in pieces", "escape twice", "8000 bytes for the clipboard"],
    )
    def test_what_a_terminal_would_show_is_shown(self, pieces: list[str], text: str) -> None:
        assert self.visible(pieces) == text

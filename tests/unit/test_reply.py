"""When a reply ends, why, and what of its last tokens is still shown: the same for single tokens and accepted runs."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokencli.core import FinishReason
from tokencli.decode.reply import Parts, Reply

END = None


class Pieces:
    """A vocabulary in which token n stands for the n-th piece; None is an end token."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self._pieces = pieces

    def piece(self, token: int) -> bytes:
        return self._pieces[token] or b""

    def is_end(self, token: int) -> bool:
        return self._pieces[token] is END


class Told:
    """A reply to `pieces`, told in runs of the given lengths (the last run takes the rest), ended for `finish`."""

    def __init__(
        self, pieces: Sequence[bytes | None], *lengths: int, finish: FinishReason = "length", stop: Sequence[str] = (), **options
    ) -> None:
        reply = Reply(Pieces(pieces), stop=stop, **options)
        bounds = [0, *itertools.accumulate(lengths), len(pieces)]
        runs = [range(start, end) for start, end in itertools.pairwise(bounds)]
        self.parts: Parts = [part for run in runs for part in reply.add(run)]
        self.before_end = "".join(text for _, text in self.parts)
        self.parts += reply.end(finish)
        self.text = "".join(text for kind, text in self.parts if kind == "answer")
        self.reasoning = "".join(text for kind, text in self.parts if kind == "reasoning")
        self.finish, self.tokens = reply.finish, reply.tokens


def test_a_reply_goes_on_until_it_is_told_to_end() -> None:
    reply = Reply(Pieces([b"Hello", b" world"]))
    assert reply.add([0]) == [("answer", "Hello")]
    assert reply.finish is None
    assert reply.add([1, 0]) == [("answer", " worldHello")]
    assert (reply.end("cancelled"), reply.finish, reply.tokens) == ([], "cancelled", 3)


@pytest.mark.parametrize("lengths", [(), (1,), (2,), (1, 1, 1, 1)])
def test_nothing_after_an_end_token_counts(lengths: tuple[int, ...]) -> None:
    told = Told([b"Hello", b" world", END, b"user", END, b"more"], *lengths)
    assert (told.text, told.finish, told.tokens) == ("Hello world", "stop", 3)


@pytest.mark.parametrize("lengths", [(), (1,), (2,), (3,), (1, 1, 1, 1)])
def test_nothing_from_a_stop_string_on_is_shown(lengths: tuple[int, ...]) -> None:
    told = Told([b"say ", b"beta ga", b"mma de", b"lta", END], *lengths, stop=["beta gamma"])
    assert (told.text, told.finish, told.tokens) == ("say ", "stop", 3)


@pytest.mark.parametrize("lengths", [(), (1,), (2,), (1, 1, 1, 1)])
def test_no_token_is_taken_beyond_the_limit(lengths: tuple[int, ...]) -> None:
    told = Told([b"a", b"b", b"c", b"d", b"e"], *lengths, max_tokens=3)
    assert (told.text, told.finish, told.tokens) == ("abc", "length", 3)


@pytest.mark.parametrize("finish", ["length", "timeout", "cancelled"])
def test_text_held_back_for_a_stop_string_is_shown_when_the_reply_is_cut(finish: FinishReason) -> None:
    told = Told([b"say ", b"beta"], stop=["beta gamma"], finish=finish)
    assert (told.before_end, told.text, told.finish) == ("say ", "say beta", finish)


def test_text_held_back_is_shown_at_an_end_token_and_at_the_limit() -> None:
    assert Told([b"say ", b"beta", END], stop=["beta gamma"]).text == "say beta"
    assert Told([b"say ", b"beta", b" gamma"], stop=["beta gamma"], max_tokens=2).text == "say beta"


def test_nothing_held_back_is_shown_after_a_stop_string() -> None:
    told = Told([b"a STOP", b"\xf0\x9f"], stop=["STOP", "STOPPED"], finish="timeout")
    assert (told.text, told.finish) == ("a ", "stop")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_split_over_tokens_comes_whole(cut: int) -> None:
    raw = "🙂".encode()
    assert Told([b"a", raw[:cut], raw[cut:]]).parts == [("answer", "a🙂")]
    assert Told([b"a", raw[:cut], raw[cut:]], 1, 1).parts == [("answer", "a"), ("answer", "🙂")]


@pytest.mark.parametrize("options", [{}, {"max_tokens": 2}, {"finish": "timeout"}, {"finish": "cancelled"}])
def test_a_character_that_is_cut_off_is_not_shown(options: dict) -> None:
    assert Told([b"a", "🙂".encode()[:3]], **options).text == "a"


def test_a_character_that_the_model_itself_leaves_unfinished_is_shown_as_one_replacement() -> None:
    assert Told([b"a", "🙂".encode()[:3], END]).text == "a�"


def test_reasoning_is_told_apart_and_stop_strings_end_it_too() -> None:
    told = Told([b"<think>", b"why\n", b"</think>", b"\n\nso", END])
    assert (told.reasoning, told.text) == ("why", "so")
    assert Told([b"why", b"</think>", b"so", END], inside_reasoning=True).parts == [("reasoning", "why"), ("answer", "so")]
    told = Told([b"<think>", b"why STOP", b"</think>", b"so"], stop=["STOP"])
    assert (told.reasoning.strip(), told.text, told.finish) == ("why", "", "stop")


def test_reasoning_held_back_at_the_end_stays_reasoning() -> None:
    told = Told([b"<think>", b"why</th"])
    assert (told.reasoning, told.text) == ("why</th", "")


@pytest.mark.parametrize(
    ("pieces", "options", "finish"),
    [
        ([b"a", END], {"max_tokens": 2}, "stop"),
        ([b"a", b"STOP"], {"max_tokens": 2, "stop": ["STOP"]}, "stop"),
        ([b"a", b"b"], {"max_tokens": 2}, "length"),
        ([b"a", b"b"], {"max_tokens": 3}, "timeout"),
        ([], {"max_tokens": 1}, "timeout"),
    ],
    ids=["end token at the limit", "stop string at the limit", "limit", "before the limit", "nothing"],
)
def test_what_the_reply_ended_by_itself_comes_before_why_it_was_cut(
    pieces: list[bytes | None], options: dict, finish: FinishReason
) -> None:
    assert Told(pieces, finish="timeout", **options).finish == finish


PIECES = [b"a", b"ab", b"ba", b"<think>", b"</think>", b" ", "🙂".encode()[:2], "🙂".encode()[2:], END]


@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([[], ["aba"], ["bb", "🙂"]]),
)
@example([b"a", b"ba", b"a"], [1, 1], None, ["aba"])
def test_runs_end_and_read_like_single_tokens(
    pieces: list[bytes | None], lengths: list[int], limit: int | None, stop: list[str]
) -> None:
    lengths = [length for length in lengths if length <= len(pieces) // max(1, len(lengths))]
    told = Told(pieces, *lengths, max_tokens=limit, stop=stop)
    single = Told(pieces, *[1] * len(pieces), max_tokens=limit, stop=stop)
    assert (told.text, told.reasoning) == (single.text, single.reasoning)
    assert (told.finish, told.tokens) == (single.finish, single.tokens)

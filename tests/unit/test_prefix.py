"""How much of a prompt is kept, and why not more."""

from hypothesis import example, given
from hypothesis import strategies as st

from tokencli.decode.prefix import common_prefix, in_held_tokens, reuse_of

PIECES = [b"", b"a", b"b", b"ab", b"ba", b"aa", b"aba", b"\xf0\x9f", b"\x98\x80", b"\xf0\x9f\x98\x80"]
texts = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


def piece(token: int) -> bytes:
    return PIECES[token]


def text(tokens: list[int]) -> bytes:
    return b"".join(map(piece, tokens))


@given(texts, texts)
@example([3, 4], [1, 2, 2, 1, 1])
@example([9], [7, 8, 1])
def test_the_text_never_changes_and_no_more_is_kept_than_is_the_same(held: list[int], prompt: list[int]) -> None:
    joined = in_held_tokens(held, prompt, piece)
    assert text(joined) == text(prompt)
    assert common_prefix(held, joined) >= common_prefix(held, prompt)


def test_other_tokens_of_the_same_text_are_kept() -> None:
    assert in_held_tokens([5, 3, 3], [5, 1, 2, 1, 2, 2], piece) == [5, 3, 3, 2]


def test_the_tokens_are_joined_where_one_ends_in_both() -> None:
    assert in_held_tokens([3, 6], [1, 2, 1, 2, 2], piece) == [3, 1, 2, 2], "aba reaches into what differs"


def all_of_it(length: int) -> int:
    return length


def test_a_longer_conversation_keeps_all() -> None:
    reuse = reuse_of([1, 2, 3], [1, 2, 3, 4, 5], all_of_it, piece)
    assert (reuse.kept, reuse.total, reuse.why) == (3, 5, "all that had been computed is still right")


def test_the_last_token_is_always_computed() -> None:
    assert reuse_of([1, 2, 3], [1, 2, 3], all_of_it, piece).kept == 2
    assert reuse_of([1, 2, 3, 4], [1, 2, 3], all_of_it, piece).kept == 2


def test_the_reason_names_where_the_texts_part() -> None:
    reuse = reuse_of([1, 2, 3], [1, 1, 2], all_of_it, piece)
    assert reuse.kept == 1
    assert reuse.why == "from token 1 on the conversation is another: 'ab' where 'bab' was"


def test_a_memory_that_cannot_be_taken_back_says_so() -> None:
    reuse = reuse_of([1, 2, 3, 4], [1, 2, 4], lambda length: 0 if length < 4 else length, piece)
    assert reuse.kept == 0
    assert reuse.why.endswith("this model's memory cannot be taken back to token 2, only to 0")


def test_nothing_before() -> None:
    assert reuse_of([], [1, 2], all_of_it, piece).why == "nothing had been computed before"

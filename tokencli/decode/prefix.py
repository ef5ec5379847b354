"""How much of a new prompt is already in the model's memory. Pure: knows tokens and the text they stand for, no engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Piece = Callable[[int], bytes]  # a token's bytes in the prompt's text, control tokens included

_SHOWN = 24


@dataclass(frozen=True, slots=True)
class Reuse:
    """What becomes of a prompt of `total` tokens: the first `kept` are not computed again; `why` not more, in a sentence."""

    kept: int
    total: int
    why: str


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens the two begin with alike."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


def in_held_tokens(held: Sequence[int], prompt: Sequence[int], piece: Piece) -> list[int]:
    """The prompt in the tokens that are held, as far as both are the same text.

    A model may write a word in other tokens than the tokenizer would: the memory is right for the text all the same. The two
    are joined at the last place where a token ends in both with the same text before it.
    """
    start = common_prefix(held, prompt)
    old, old_ends = _ends(held[start:], piece)
    new, new_ends = _ends(prompt[start:], piece)
    same = common_prefix(old, new)
    join = max(end for end in old_ends.keys() & new_ends.keys() if end <= same)
    return [*held[: start + old_ends[join]], *prompt[start + new_ends[join] :]]


def _ends(tokens: Sequence[int], piece: Piece) -> tuple[bytes, dict[int, int]]:
    """The text, and where in it a token ends: after how many tokens first, by bytes."""
    text, ends = bytearray(), {0: 0}
    for count, token in enumerate(tokens, start=1):
        text += piece(token)
        ends.setdefault(len(text), count)
    return bytes(text), ends


def reuse_of(held: Sequence[int], prompt: Sequence[int], reach: Callable[[int], int], piece: Piece) -> Reuse:
    """How much of the prompt to keep; `reach` tells the longest length up to another that the memory can be taken back to.

    The last token of a prompt is always computed: what follows it is asked for.
    """
    same = common_prefix(held, prompt)
    wanted = min(same, len(prompt) - 1)
    kept = reach(wanted)
    return Reuse(kept, len(prompt), _why(held, prompt, same, wanted, kept, piece))


def _why(held: Sequence[int], prompt: Sequence[int], same: int, wanted: int, kept: int, piece: Piece) -> str:
    if not held:
        return "nothing had been computed before"
    if same in (len(held), len(prompt)):
        parted = "all that had been computed is still right"
    else:
        was, now = _text(held[same:], piece), _text(prompt[same:], piece)
        parted = f"from token {same} on the conversation is another: {now!r} where {was!r} was"
    if kept < wanted:
        return f"{parted}; this model's memory cannot be taken back to token {wanted}, only to {kept}"
    return parted


def _text(tokens: Sequence[int], piece: Piece) -> str:
    text = b"".join(piece(token) for token in tokens[:_SHOWN]).decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"

"""The token loop: one target pass over the last token and a draft, keep what agrees, roll back the rest. Plain decoding is
the same loop with a drafter that proposes nothing. Knows the Decoder protocol, no engine and no clock.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokencli.decode.sampling import Candidates, pick


class Decoder(Protocol):
    """What the loop needs, and all it knows of an engine. One sequence; its length counts the tokens decoded and kept."""

    def decode(self, tokens: Sequence[int], rows: int) -> None:
        """Append tokens; keep the logits of the last `rows` of them."""

    def candidates(self, row: int) -> Candidates:
        """The sampler chain's result for kept row `row` of the last decode call, 0 the first."""

    def floor(self) -> int:
        """The shortest length that `rollback` reaches exactly."""

    def rollback(self, length: int) -> None:
        """Cut back to `length` tokens."""


class Drafter(Protocol):
    """Guesses what comes next."""

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most `most` tokens that may follow `tokens`, the prompt and all output so far; empty for none."""


@dataclass(frozen=True, slots=True)
class Step:
    """One emission: the tokens of one target pass, the accepted ones and the target's own next one, and how they came."""

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0


def speculate(decoder: Decoder, drafter: Drafter, history: list[int], *, seed: int, depth: int, context: int) -> Generator[Step]:
    """Yield steps until the consumer stops by closing, or the context of `context` tokens is full.

    `history` is the prompt, decoded with its last row kept; it grows with the output. The token at a position depends on
    (seed, position) and the target alone, so the text is the same with any drafter and depth.
    """
    token = pick(decoder.candidates(0), seed, len(history))
    history.append(token)
    yield Step((token,))
    while len(history) <= context:
        most = min(depth, context - len(history))
        draft = list(drafter.propose(history, most)) if most > 0 else []
        decoder.decode([token, *draft], len(draft) + 1)
        tokens = _agreed(decoder, draft, seed, len(history))
        if len(tokens) <= len(draft):
            decoder.rollback(len(history) + len(tokens) - 1)
        history += tokens
        token = tokens[-1]
        yield Step(tuple(tokens), drafted=len(draft), accepted=len(tokens) - 1)


def _agreed(decoder: Decoder, draft: Sequence[int], seed: int, position: int) -> list[int]:
    """The target's picks, row by row, up to and with the first that differs from the draft."""
    tokens: list[int] = []
    for row in range(len(draft) + 1):
        tokens.append(pick(decoder.candidates(row), seed, position + row))
        if row < len(draft) and tokens[row] != draft[row]:
            break
    return tokens

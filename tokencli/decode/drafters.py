"""Guesses of what comes next: nothing, a repeat of what was there before, or a small model's own picks. Pure.

All of them propose for the same positions with the same noise as the target, so a good guess stands more often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokencli.decode.sampling import pick
from tokencli.decode.speculate import Decoder, Drafter
from tokencli.errors import TokencliError


class NoDraft:
    """The drafter of plain decoding."""

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return ()


class NgramDrafter:
    """Prompt lookup: what followed the longest earlier match of the last tokens, the most recent of equally long ones.

    Matches of LONGEST down to SHORTEST tokens are found by index: each token enters it once, a lookup costs LONGEST steps at
    most, whatever the length of the text. `tokens` must grow from call to call, as one conversation does.
    """

    LONGEST = 8
    SHORTEST = 2

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # the tokens of a match -> where the latest one ended
        self._indexed = 0

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        self._index(tokens)
        start = self._follows(tokens)
        if start is None or most <= 0:
            return ()
        known = len(tokens)
        draft: list[int] = []
        for at in range(start, start + most):  # a match that reaches the end goes on in the draft itself: a repeat
            draft.append(tokens[at] if at < known else draft[at - known])
        return draft

    def _index(self, tokens: Sequence[int]) -> None:
        """Enter all matches that end before the last token: those that end with it are what is looked for."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in range(self.SHORTEST, min(self.LONGEST, end) + 1):
                self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _follows(self, tokens: Sequence[int]) -> int | None:
        for size in range(min(self.LONGEST, len(tokens)), self.SHORTEST - 1, -1):
            end = self._ends.get(tuple(tokens[len(tokens) - size :]))
            if end is not None:
                return end
        return None


class DraftDecoder(Decoder, Protocol):
    """A decoder that also says how sure it is."""

    def probability(self, row: int, token: int) -> float:
        """What the model gives `token` in kept row `row`, before any sampling."""


GoesOn = Callable[[int, float], tuple[bool, bool]]  # number and probability of a guess -> keep it, make one more


@dataclass(frozen=True, slots=True)
class Spent:
    """What a draft model did for one proposal: the first call read `read` tokens, `steps` more followed; seconds of each."""

    read: int = 0
    reading: float = 0.0
    steps: int = 0
    drafting: float = 0.0
    told: tuple[float, ...] = ()


class ModelDrafter:
    """A smaller model decodes ahead. Its own cache follows the text: what the target refused is taken back first."""

    def __init__(self, decoder: DraftDecoder, seed: int, now: Callable[[], float] = lambda: 0.0) -> None:
        self._decoder = decoder
        self._seed = seed
        self._now = now
        self._cached: list[int] = []  # what is in the draft's cache
        self._agreed = 0  # as many of them are known to be the text's
        self._start = 0  # where in the text the cache begins
        self.spent = Spent()

    def begin(self, seed: int) -> None:
        """The next text: what it shares with the last one stays in the cache."""
        self._seed = seed
        self._agreed = 0

    def behind(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` it would have to read before it can guess."""
        return len(tokens) if self._start else len(tokens) - self._same(tokens)

    def propose(self, tokens: Sequence[int], most: int, goes_on: GoesOn | None = None, tail: int | None = None) -> Sequence[int]:
        """`goes_on` may end the draft earlier. `tail`: read only so much of the end of the text, if most of it is unread."""
        self.spent = Spent()
        if most <= 0:
            return ()
        begun = self._now()
        read = self._catch_up(tokens, tail)
        caught_up = self._now()
        draft, told = self._guesses(len(tokens), most, goes_on)
        steps = len(self._cached) + self._start - len(tokens)
        self.spent = Spent(read, caught_up - begun, steps, self._now() - caught_up, told)
        return draft

    def _guesses(self, position: int, most: int, goes_on: GoesOn | None) -> tuple[list[int], tuple[float, ...]]:
        draft: list[int] = []
        told: list[float] = []
        while True:
            draft.append(pick(self._decoder.candidates(0), self._seed, position + len(draft)))
            if goes_on:
                told.append(self._decoder.probability(0, draft[-1]))
                keeps, more = goes_on(len(draft), told[-1])
                if not keeps:
                    del draft[-1]
                if not (keeps and more):
                    break
            if len(draft) == most:
                break
            self._decode(draft[-1:])
        return draft, tuple(told)

    def _same(self, tokens: Sequence[int]) -> int:
        """How many tokens of the text the cache holds, from its start on; the last one is decoded anew: its logits are needed."""
        same, start = self._agreed, self._start
        while same < len(self._cached) and start + same < len(tokens) and self._cached[same] == tokens[start + same]:
            same += 1
        self._agreed = same  # the text only grows: what was compared once need not be again
        return max(0, min(same, len(tokens) - 1 - start))

    def _catch_up(self, tokens: Sequence[int], tail: int | None) -> int:
        """Make the cache hold `tokens`, the logits after the last one kept; how many were read for it."""
        same, behind = self._same(tokens), self.behind(tokens)
        if tail is not None and tail < behind and len(tokens) - behind <= behind:
            same, self._start = 0, len(tokens) - tail
        elif self._start:
            same = self._start = 0
        if same < len(self._cached):
            self._decoder.rollback(same)
            del self._cached[same:]
        unread = tokens[self._start + same :]
        self._decode(unread)
        self._agreed = len(tokens) - self._start
        return len(unread)

    def _decode(self, tokens: Sequence[int]) -> None:
        self._decoder.decode(tokens, 1)
        self._cached += tokens


class Guarded:
    """Lets the answer go on when its drafter fails, by `fallback` from the next proposal on; `failure` says why it failed."""

    def __init__(self, drafter: Drafter, fallback: Drafter | None = None) -> None:
        self._drafter = drafter
        self._fallback = fallback or NoDraft()
        self.failure: str | None = None

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        try:
            return self._drafter.propose(tokens, most)
        except TokencliError as error:
            self.failure = error.what
            self._drafter = self._fallback
            return ()

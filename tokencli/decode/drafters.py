"""Guesses of what comes next: nothing, a repeat of what was there before, or a small model's own picks. Pure.

All of them propose for the same positions with the same noise as the target, so a good guess stands more often.
"""

from collections.abc import Sequence

from tokencli.decode.sampling import pick
from tokencli.decode.speculate import Decoder, Drafter
from tokencli.errors import EngineError


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


class ModelDrafter:
    """A smaller model decodes ahead. Its own cache follows the text: what the target refused is taken back first."""

    def __init__(self, decoder: Decoder, seed: int) -> None:
        self._decoder = decoder
        self._seed = seed
        self._cached: list[int] = []  # what is in the draft's cache
        self._agreed = 0  # as many of them are known to be the text's

    def begin(self, seed: int) -> None:
        """The next text: what it shares with the last one stays in the cache."""
        self._seed = seed
        self._agreed = 0

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        if most <= 0:
            return ()
        self._catch_up(tokens)
        draft: list[int] = []
        while True:
            draft.append(pick(self._decoder.candidates(0), self._seed, len(tokens) + len(draft)))
            if len(draft) == most:
                return draft
            self._decode(draft[-1:])

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Make the cache hold exactly `tokens`, the logits after the last one kept."""
        same = self._agreed
        while same < len(self._cached) and same < len(tokens) and self._cached[same] == tokens[same]:
            same += 1
        same = min(same, len(tokens) - 1)  # the last token is decoded anew where all are known: its logits are needed
        if same < len(self._cached):
            self._decoder.rollback(same)
            del self._cached[same:]
        self._decode(tokens[same:])
        self._agreed = len(tokens)

    def _decode(self, tokens: Sequence[int]) -> None:
        self._decoder.decode(tokens, 1)
        self._cached += tokens


class Guarded:
    """Lets the answer go on when its drafter fails: from then on nothing is proposed, `failure` says why."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.failure: str | None = None

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        try:
            return self._drafter.propose(tokens, most)
        except EngineError as error:
            self.failure = error.what
            self._drafter = NoDraft()
            return ()

"""Lets a decoder's answer be only what a grammar allows. Pure: the grammar itself is asked through a small protocol.

Its state follows the text: a guess is accepted when the row behind it is looked at, which happens only where it stands.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokencli.core import Sampling
from tokencli.decode.sampling import Candidates, Floats, Ids, candidates, largest
from tokencli.decode.speculate import Decoder
from tokencli.errors import EngineError

FIRST_LOOK = 256  # of a whole vocabulary a grammar takes 5-45 ms (FACTS)


class Grammar(Protocol):
    """What may come next."""

    def allowed(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of the tokens may come next, shape of `ids`."""

    def accept(self, token: int) -> None:
        """The text goes on with a token that is allowed."""


class LogitsDecoder(Decoder, Protocol):
    """A decoder that shows its rows as they are."""

    def logits(self, row: int) -> Floats:
        """Kept row `row` of the last decode call, shape (vocabulary,); valid until the next call."""


class Constrained:
    """A Decoder whose candidates are those of the grammar: asked row by row, the prompt decoded elsewhere."""

    def __init__(self, decoder: LogitsDecoder, grammar: Grammar, sampling: Sampling) -> None:
        self._decoder, self._grammar, self._sampling = decoder, grammar, sampling
        self._tokens: Sequence[int] = ()
        self._accepted = 0  # of them

    def decode(self, tokens: Sequence[int], rows: int) -> None:
        self._decoder.decode(tokens, rows)
        self._tokens, self._accepted = list(tokens), 0

    def candidates(self, row: int) -> Candidates:
        if self._tokens:
            for token in self._tokens[self._accepted : row + 1]:
                self._grammar.accept(token)
            self._accepted = max(self._accepted, row + 1)
        logits = self._decoder.logits(row)
        ids = self._allowed(logits, FIRST_LOOK)
        if not len(ids):
            ids = self._allowed(logits, len(logits))
        if not len(ids):
            raise EngineError("no token of this model goes on as the grammar asks", "try a simpler --grammar or --json-schema")
        found = candidates(logits[ids], self._sampling)
        return Candidates(ids[found.ids], found.log_probabilities)

    def floor(self) -> int:
        return self._decoder.floor()

    def rollback(self, length: int) -> None:
        self._decoder.rollback(length)

    def _allowed(self, logits: Floats, most: int) -> Ids:
        ids = largest(logits, most)
        return ids[self._grammar.allowed(ids)]

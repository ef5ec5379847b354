"""Reads a text with a loaded model and tells what each token costs it, and how far it is from another that read it before.

As llama.cpp's perplexity tool does it: chunks read from an empty memory, of which the second half counts. The other model's
logits come from a file, bit by bit as they were, so that neither two models nor any rounding are needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokencli.core import Prefilling, Scored
from tokencli.decode.divergence import apart, costs, counted, log_probabilities
from tokencli.decode.sampling import Floats
from tokencli.engine.model import LoadedModel
from tokencli.engine.vocabulary import NativeVocabulary
from tokencli.errors import EngineError, UsageError

# Logits in one call, on the host and once more in the compute buffer: half a chunk of 512 tokens up to a vocabulary of 164k. How
# tokens are divided into calls changes the last bits, so both sides divide alike, and as llama.cpp's tool where they can.
_CALL_BYTES = 160 << 20
_ROWS = 32  # that are looked at together: float64 takes twice the memory of logits, several times


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of logits that one model left in a folder, for another to be compared with."""

    folder: Path

    @classmethod
    def kept(cls, folder: str | None) -> "Rows | None":
        return cls(Path(folder)) if folder else None

    def begin(self, chunks: Sequence[Sequence[int]]) -> None:
        self._logits.unlink(missing_ok=True)
        np.save(self._tokens, np.array(chunks))

    def add(self, logits: Floats) -> None:
        """Raises EngineError where the disk is full."""
        try:
            with self._logits.open("ab") as file:
                file.write(logits.tobytes())
        except OSError as error:
            raise EngineError(f"{self.folder} cannot be written: {error.strerror}", "make room on the disk") from None

    def check(self, chunks: Sequence[Sequence[int]]) -> None:
        """Raises UsageError where these are not the tokens of the rows."""
        kept = np.load(self._tokens)
        if kept.shape != np.shape(chunks) or (kept != np.array(chunks)).any():
            raise UsageError("the two models read the text as different tokens", "compare files of one model")

    def read(self, start: int, count: int, width: int) -> Floats:
        """Rows `start` on, shape (count, width)."""
        return np.fromfile(self._logits, np.float32, count * width, offset=4 * start * width).reshape(count, width)

    @property
    def _tokens(self) -> Path:
        return self.folder / "tokens.npy"

    @property
    def _logits(self) -> Path:
        return self.folder / "logits.f32"


def chunks_of(text: str, vocabulary: NativeVocabulary, length: int, most: int) -> list[list[int]]:
    """The text's tokens in up to `most` whole chunks, each with the BOS first where there is one. Raises UsageError."""
    first = vocabulary.first_token
    tokens = [*([] if first is None else [first]), *vocabulary.tokenize(text, special=False)]
    chunks = [tokens[start : start + length] for start in range(0, len(tokens) - length + 1, length)]
    if not chunks:
        raise UsageError(f"the text has {len(tokens)} tokens, one chunk takes {length}", "give a longer --text")
    if first is not None:
        chunks = [[first, *chunk[1:]] for chunk in chunks]
    return chunks[:most]


def scored(
    model: LoadedModel, chunks: Sequence[Sequence[int]], keep: Rows | None, against: Rows | None
) -> Iterator[Prefilling | Scored]:
    """Each chunk as it was read. `keep`: where its logits are written to; `against`: another's that they are compared with.

    Raises UsageError, EngineError, OutOfMemory.
    """
    if against:
        against.check(chunks)
    if keep:
        keep.begin(chunks)
    length, width = len(chunks[0]), model.vocabulary.size
    at_once = max(min(model.batch, counted(length), _CALL_BYTES // (4 * width)), 1)
    model.reopen(at_once)
    for number, chunk in enumerate(chunks, 1):
        parts: list[Scored] = []
        for first, logits in _rows_of(model, chunk, at_once):
            yield Prefilling((number - 1) * length + first, len(chunks) * length)
            if keep:
                keep.add(logits)
            at = (number - 1) * counted(length) + first - length // 2
            parts.append(_part(logits, chunk[first + 1 : first + 1 + len(logits)], against, at))
        yield _joined(number, len(chunks), parts)


def _rows_of(model: LoadedModel, chunk: Sequence[int], at_once: int) -> Iterator[tuple[int, Floats]]:
    """The logits after the tokens of the chunk's second half, some rows at a time, each with where in the chunk it begins."""
    half, end = len(chunk) // 2, len(chunk) - 1
    model.rollback(0)
    model.decode(chunk[:half], 0)
    for start in range(half, end, at_once):
        stop = min(start + at_once, end)
        model.decode(chunk[start:stop], stop - start)
        for first in range(start, stop, _ROWS):
            yield first, np.stack([model.logits(row - start) for row in range(first, min(first + _ROWS, stop))])


def _part(logits: Floats, tokens: Sequence[int], against: Rows | None, at: int) -> Scored:
    own = tuple(costs(log_probabilities(logits), tokens).tolist())
    if against is None:
        return Scored(0, 0, own)
    found = apart(against.read(at, *logits.shape), logits, tokens)
    return Scored(0, 0, own, tuple(found.costs.tolist()), tuple(found.divergences.tolist()), found.same_top)


def _joined(number: int, count: int, parts: Sequence[Scored]) -> Scored:
    same = [part.same_top for part in parts if part.same_top is not None]
    return Scored(
        number,
        count,
        tuple(cost for part in parts for cost in part.costs),
        tuple(cost for part in parts for cost in part.reference_costs),
        tuple(each for part in parts for each in part.divergences),
        sum(same) if same else None,
    )

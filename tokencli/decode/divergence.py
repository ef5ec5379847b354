"""How far two models' next-token distributions are apart, and what a text costs one, from rows of logits. Knows numpy only.

All in float64 from the logits as they are: of equal rows the divergence is 0 exactly.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokencli.decode.sampling import Floats
from tokencli.errors import EngineError

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Apart:
    """Two models on the same tokens, row by row. `costs` are the first one's, which the divergence is taken from."""

    costs: Doubles
    divergences: Doubles
    same_top: int


def counted(length: int) -> int:
    """Tokens of a chunk that count: those after its first half, as the first ones of a text are cut off from what was before."""
    return length - 1 - length // 2


def log_probabilities(logits: Floats) -> Doubles:
    """Of rows of logits, shape (rows, vocabulary): the log-softmax of each.

    Raises EngineError where a row holds not-a-number, as a broken GPU kernel gives.
    """
    top = logits.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise EngineError("the model's output is not a number", "the backend computes wrongly: try --gpu-layers 0")
    shifted = logits.astype(np.float64) - top
    found: Doubles = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def costs(log_probabilities: Doubles, tokens: npt.ArrayLike) -> Doubles:
    """Nats of each row's token, its negative log-probability."""
    ids = np.asarray(tokens, dtype=np.int64)
    found: Doubles = -log_probabilities[np.arange(len(ids)), ids]
    return found


def apart(reference: Floats, logits: Floats, tokens: npt.ArrayLike) -> Apart:
    """The reference's costs, and by row sum(p x (log p - log q)), p being the reference's probabilities (Kullback-Leibler)."""
    expected, found = log_probabilities(reference), log_probabilities(logits)
    weights = np.exp(expected)
    with np.errstate(invalid="ignore"):  # -inf from -inf, where neither gives a token any chance
        terms = np.where(weights > 0, weights * (expected - found), 0.0)
    same = int(np.count_nonzero(reference.argmax(axis=1) == logits.argmax(axis=1)))
    return Apart(costs(expected, tokens), terms.sum(axis=1), same)

"""From logits to the next token: the sampler chain on a few candidates, and one random number per position.

The noise of a candidate is a function of (seed, position, token id) alone, so a draft, any depth and any fallback give the
same text. Knows numpy, no engine.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokencli.core import Sampling
from tokencli.errors import EngineError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_CERTAIN = np.zeros(1)
_GROUP = 64
_FIRST_LOOK = 256


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the sampler chain left: token ids, most probable first, and their log-probabilities (sum of exp is 1)."""

    ids: Ids
    log_probabilities: npt.NDArray[np.float64]


def candidates(logits: Floats, sampling: Sampling) -> Candidates:
    """Apply top-k, top-p, min-p and temperature (llama.cpp's order and meaning) to one row of logits, shape (vocabulary,).

    Raises EngineError where the row holds not-a-number, as a broken GPU kernel gives.
    """
    best = int(logits.argmax())
    top = float(logits[best])
    if not math.isfinite(top):
        raise EngineError("the model's output is not a number", "the backend computes wrongly: try --gpu-layers 0")
    if sampling.temperature <= 0:
        return _certain(best)
    ids = _truncated(logits, top, sampling)
    scaled = (logits[ids].astype(np.float64) - top) / sampling.temperature
    return Candidates(ids, scaled - np.log(np.exp(scaled).sum()))


def probability(logits: Floats, token: int) -> float:
    """What the model itself gives a token, before any sampling: its share of the softmax."""
    return float(1 / np.exp(logits - logits[token]).sum(dtype=np.float64))


@functools.lru_cache(maxsize=4096)
def _certain(token: int) -> Candidates:
    """Made once per token."""
    return Candidates(np.array((token,)), _CERTAIN)


def pick(choice: Candidates, seed: int, position: int) -> int:
    """The token for `position`: the Gumbel-max trick, argmax(log p + noise), draws exactly from the candidates' distribution."""
    if len(choice.ids) == 1:
        return int(choice.ids[0])
    return int(choice.ids[int((choice.log_probabilities + gumbel(seed, position, choice.ids)).argmax())])


def gumbel(seed: int, position: int, ids: Ids) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, shape of `ids`: -log(-log(u)) with u in (0, 1) a SplitMix64 hash of (seed, position, id)."""
    start = _mix_int(_mix_int(seed & _WORD) ^ (position & _WORD))
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


_WORD = (1 << 64) - 1


def _mix_int(value: int) -> int:
    """SplitMix64 (Steele, Lea, Flood 2014) of one 64-bit word."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def _truncated(logits: Floats, top: float, sampling: Sampling) -> Ids:
    """Ids kept by top-k, top-p and min-p, most probable first.

    Without top-k the whole vocabulary counts, but only as many of the largest are sorted as top-p and min-p can reach.
    """
    everything = len(logits)
    limited = 0 < sampling.top_k < everything
    look = sampling.top_k if limited else _FIRST_LOOK
    total = None if limited else _total(logits, top, sampling)
    while True:
        look = min(look, everything)
        ids = largest(logits, look)
        weights = np.exp(logits[ids].astype(np.float64) - top)
        kept = _kept(weights, float(weights.sum()) if total is None else total, sampling)
        if kept < len(ids) or limited or look == everything:
            return ids[:kept]
        look *= 8


def _total(logits: Floats, top: float, sampling: Sampling) -> float:
    """Sum of all weights: what top-p is a share of when there is no top-k."""
    return float(np.exp(logits - np.float32(top)).sum(dtype=np.float64)) if sampling.top_p < 1 else np.inf


def _kept(weights: npt.NDArray[np.float64], total: float, sampling: Sampling) -> int:
    """How many of the sorted weights top-p (the one that crosses the share included) and min-p leave; at least one."""
    kept = len(weights)
    if sampling.top_p < 1:
        kept = int(np.searchsorted(np.cumsum(weights), sampling.top_p * total)) + 1
    if sampling.min_p > 0:
        kept = min(kept, int(np.count_nonzero(weights >= sampling.min_p)))
    return max(1, min(kept, len(weights)))


def largest(logits: Floats, count: int) -> Ids:
    """Ids of the `count` largest logits, largest first, ties by id.

    The vocabulary is cut into strided groups, so that their maxima are one fast pass. The count-th largest of them is a lower
    bound of the count-th largest logit, and only the groups that reach it are looked into.
    """
    groups = len(logits) // _GROUP
    if count >= groups:
        return np.argsort(-logits, kind="stable")[:count]
    whole = groups * _GROUP
    table = logits[:whole].reshape(_GROUP, groups)
    maxima = table.max(axis=0)
    bound = np.partition(maxima, groups - count)[groups - count]
    near = np.flatnonzero(maxima >= bound)
    row, column = np.nonzero(table[:, near] >= bound)
    ids = np.concatenate((row * groups + near[column], whole + np.flatnonzero(logits[whole:] >= bound)))
    return ids[np.argsort(-logits[ids], kind="stable")[:count]]

"""What a text read by two models, or by one, says of the loss: figures with their intervals. Pure; knows no model and no file.

Neighbouring tokens are alike, so chunks are what varies: an interval is Student's, from the figure without each chunk in turn
(the jackknife; of a mean it is the usual interval of the chunks' means). It holds the figure of such texts with about 90 %.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tokencli.core import Scored
from tokencli.decode.stats import percentile

# The 95 % point of Student's t at 1 to 4 degrees of freedom; from 5 on the expansion below is right to 0.01.
_FEW = (6.314, 2.920, 2.353, 2.132)
_NORMAL = 1.644854


@dataclass(frozen=True, slots=True)
class Figure:
    """A value and the interval that holds it with about 90 %; none of a single chunk."""

    value: float
    low: float | None = None
    high: float | None = None

    def mapped(self, change: Callable[[float], float]) -> "Figure":
        """The same through a function that grows."""
        ends = (None if end is None else change(end) for end in (self.low, self.high))
        return Figure(change(self.value), *ends)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all chunks read. Without a reference there is the perplexity alone.

    `perplexity_lost`: percent, tested against reference, token by token the same text, so its interval is narrower than theirs.
    Divergences are in nats; `same_top` is a share.
    """

    chunks: int
    tokens: int
    perplexity: Figure
    reference_perplexity: Figure | None = None
    perplexity_lost: Figure | None = None
    mean_divergence: Figure | None = None
    high_divergence: Figure | None = None  # the 99th percentile
    same_top: Figure | None = None


def figures(chunks: Sequence[Scored]) -> Figures:
    """Of one chunk or more, all of them with a reference or none."""
    perplexity = jackknife(chunks, _mean_cost).mapped(math.exp)
    found = Figures(len(chunks), sum(len(chunk.costs) for chunk in chunks), perplexity)
    if any(chunk.same_top is None for chunk in chunks):
        return found
    return Figures(
        found.chunks,
        found.tokens,
        perplexity,
        reference_perplexity=jackknife(chunks, _mean_reference_cost).mapped(math.exp),
        perplexity_lost=jackknife(chunks, lambda each: _mean_cost(each) - _mean_reference_cost(each)).mapped(
            lambda nats: 100 * math.expm1(nats)
        ),
        mean_divergence=_within(jackknife(chunks, lambda each: statistics.fmean(_divergences(each))), 0.0, math.inf),
        high_divergence=_within(jackknife(chunks, lambda each: percentile(sorted(_divergences(each)), 0.99)), 0.0, math.inf),
        same_top=_within(jackknife(chunks, _same_top), 0.0, 1.0),
    )


def jackknife(chunks: Sequence[Scored], figure: Callable[[Sequence[Scored]], float]) -> Figure:
    """The figure of all chunks, and the interval of it (Quenouille 1956, Tukey 1958)."""
    value, count = figure(chunks), len(chunks)
    if count < 2:
        return Figure(value)
    without = [figure([*chunks[:at], *chunks[at + 1 :]]) for at in range(count)]
    mean = statistics.fmean(without)
    error = math.sqrt((count - 1) / count * sum((each - mean) ** 2 for each in without))
    return Figure(value, value - student(count - 1) * error, value + student(count - 1) * error)


def student(freedom: int) -> float:
    """What bounds 90 % of Student's t: its 95 % point (Abramowitz and Stegun 26.7.5)."""
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _within(figure: Figure, least: float, most: float) -> Figure:
    """The interval cut to what the figure can be; its value is never outside."""
    low, high = (None if end is None else min(max(end, least), most) for end in (figure.low, figure.high))
    return Figure(figure.value, low, high)


def _mean_cost(chunks: Iterable[Scored]) -> float:
    return statistics.fmean(itertools.chain.from_iterable(chunk.costs for chunk in chunks))


def _mean_reference_cost(chunks: Iterable[Scored]) -> float:
    return statistics.fmean(itertools.chain.from_iterable(chunk.reference_costs for chunk in chunks))


def _divergences(chunks: Iterable[Scored]) -> list[float]:
    return [each for chunk in chunks for each in chunk.divergences]


def _same_top(chunks: Sequence[Scored]) -> float:
    return sum(chunk.same_top or 0 for chunk in chunks) / sum(len(chunk.costs) for chunk in chunks)

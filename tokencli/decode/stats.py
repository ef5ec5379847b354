"""Measures one answer by a clock that is handed in: TTFT, inter-token latency, prefill and decode speed (DESIGN, Metrics)."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from tokencli.core import Gain, Percentiles, Stats


class Meter:
    """Told what happens as it happens; `stats` reads it out. Rates are totals over totals, never a mean of rates."""

    def __init__(
        self,
        now: Callable[[], float],
        prompt_tokens: int,
        cached_tokens: int,
        load_seconds: float,
        start: float | None = None,
    ) -> None:
        """`start`: when the request came, where that is not now."""
        self._now = now
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._load_seconds = load_seconds
        self._start = now() if start is None else start
        self._prefilled: float | None = None
        self._emissions: list[float] = []
        self._tokens = 0
        self._drafted = 0
        self._accepted = 0
        self._drafts: list[int] = []  # by emission
        self._draft_seconds = self._verify_seconds = 0.0

    def prefilled(self) -> None:
        """The whole prompt has been decoded."""
        self._prefilled = self._now()

    def emitted(self, tokens: int, drafted: int, accepted: int) -> None:
        """One emission of `tokens` tokens is out."""
        self._emissions.append(self._now())
        self._drafts.append(drafted)
        self._tokens += tokens
        self._drafted += drafted
        self._accepted += accepted

    def engine_seconds(self, verify: float, draft: float = 0.0) -> None:
        """Time inside llama_decode since the prefill, of the target and of a draft, told at the end: the rest is our overhead."""
        self._verify_seconds, self._draft_seconds = verify, draft

    def stats(self) -> Stats:
        first, last = (self._emissions[0], self._emissions[-1]) if self._emissions else (None, None)
        spent = last - first if first is not None and last is not None else 0.0
        prefill = self._prefilled - self._start if self._prefilled is not None else 0.0
        computed = self._prompt_tokens - self._cached_tokens
        emissions = len(self._emissions)
        rounds = sum(1 for drafted in self._drafts if drafted)
        python = spent - self._verify_seconds - self._draft_seconds
        decoded = self._tokens > 1
        return Stats(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            tokens=self._tokens,
            load_seconds=self._load_seconds,
            ttft_seconds=first - self._start if first is not None else None,
            prefill_tokens_per_second=_rate(computed, prefill),
            decode_tokens_per_second=_rate(self._tokens - 1, spent),
            itl_ms=_itl(self._emissions),
            tokens_per_emission=self._tokens / emissions if emissions else None,
            drafted=self._drafted,
            accepted=self._accepted,
            overhead_ms_per_token=_overhead(python, self._tokens - 1),
            accepted_length=self._accepted / rounds if rounds else None,
            draft_seconds=self._draft_seconds if decoded else None,
            verify_seconds=self._verify_seconds if decoded else None,
            python_seconds=max(python, 0.0) if decoded else None,
            depths=_parts(self._drafts[1:]) if rounds else (),
            gain=self._gain(spent) if rounds else None,
        )

    def _gain(self, spent: float) -> Gain | None:
        """Against the rounds that guessed nothing; the interval is Student's for their mean time."""
        gaps = [after - before for before, after in itertools.pairwise(self._emissions)]
        plain = [gap for gap, drafted in zip(gaps, self._drafts[1:], strict=True) if not drafted]
        if len(plain) < _FEWEST_PLAIN or spent <= 0 or self._tokens < 2:
            return None
        mean = statistics.fmean(plain)
        error = _STUDENT * statistics.stdev(plain) / math.sqrt(len(plain))
        each = spent / (self._tokens - 1)
        return Gain(mean / each, max(mean - error, 0.0) / each, (mean + error) / each, len(plain))


_FEWEST_PLAIN = 5
_STUDENT = 2.13  # 90 % at four degrees of freedom; with more rounds it is wider than need be
_PARTS = 32


def _parts(drafts: Sequence[int]) -> tuple[float, ...]:
    """The mean of up to 32 equal parts, to one decimal."""
    count = min(_PARTS, len(drafts))
    edges = [len(drafts) * part // count for part in range(count + 1)] if count else []
    return tuple(round(statistics.fmean(drafts[start:end]), 1) for start, end in itertools.pairwise(edges))


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


def _overhead(seconds: float, tokens: int) -> float | None:
    return 1000 * max(seconds, 0.0) / tokens if tokens > 0 else None


def _itl(emissions: Sequence[float]) -> Percentiles | None:
    gaps = sorted(1000 * (after - before) for before, after in itertools.pairwise(emissions))
    return Percentiles(*(percentile(gaps, share) for share in (0.5, 0.9, 0.99))) if gaps else None


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, linear between neighbours (numpy's default)."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

"""The numbers of an answer by a clock that only the test moves; the definitions are DESIGN's (Metrics)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencli.core import Percentiles, Stats
from tokencli.decode.stats import Meter, percentile


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def measured(
    *emissions: tuple[float, int], prompt: int = 100, cached: int = 0, prefill: float | None = 0.5, engine: float = 0.0
) -> Stats:
    """An answer whose emissions are (seconds after the one before, tokens); of the drafted tokens half were accepted."""
    clock = Clock()
    meter = Meter(clock, prompt, cached, load_seconds=3.0)
    if prefill is not None:
        clock.now += prefill
        meter.prefilled()
    for seconds, tokens in emissions:
        clock.now += seconds
        meter.emitted(tokens, drafted=2 * (tokens - 1), accepted=tokens - 1)
    clock.now += 99  # what comes after the last token counts nowhere
    meter.engine_seconds(engine)
    return meter.stats()


def test_an_answer_in_its_parts() -> None:
    stats = measured((0.1, 1), (0.2, 1), (0.2, 1), (0.4, 1))
    assert stats.load_seconds == 3.0
    assert stats.ttft_seconds == pytest.approx(0.6), "from the request to the first token, without loading"
    assert stats.prefill_tokens_per_second == pytest.approx(100 / 0.5)
    assert stats.decode_tokens_per_second == pytest.approx(3 / 0.8), "(tokens - 1) / (last - first)"
    assert (stats.prompt_tokens, stats.cached_tokens, stats.tokens) == (100, 0, 4)


def test_inter_token_latency_is_the_gaps_between_emissions() -> None:
    stats = measured((9, 1), (0.500, 1), *[(0.010, 1)] * 98)
    assert stats.itl_ms is not None
    assert stats.itl_ms.p50 == stats.itl_ms.p90 == pytest.approx(10)
    assert stats.itl_ms.p99 == pytest.approx(float(np.percentile([10] * 98 + [500], 99)))


def test_the_tokens_of_an_accepted_run_come_together() -> None:
    stats = measured((0.1, 1), (0.3, 4), (0.3, 3))
    assert stats.itl_ms == Percentiles(*[pytest.approx(300)] * 3)
    assert stats.decode_tokens_per_second == pytest.approx(7 / 0.6)
    assert stats.tokens_per_emission == pytest.approx(8 / 3)
    assert (stats.drafted, stats.accepted, stats.acceptance) == (10, 5, 0.5)


def test_cached_tokens_were_not_computed() -> None:
    stats = measured((0.1, 1), prompt=100, cached=80)
    assert (stats.prompt_tokens, stats.cached_tokens) == (100, 80)
    assert stats.prefill_tokens_per_second == pytest.approx(20 / 0.5)
    assert measured((0.1, 1), prompt=100, cached=100).prefill_tokens_per_second is None


def test_one_token_has_no_rate() -> None:
    stats = measured((0.1, 1))
    assert (stats.tokens, stats.tokens_per_emission) == (1, 1)
    assert stats.decode_tokens_per_second is stats.itl_ms is stats.overhead_ms_per_token is None
    assert stats.ttft_seconds == pytest.approx(0.6)


@pytest.mark.parametrize("prefill", [0.5, None])
def test_no_token_has_nothing_but_what_was_read(prefill: float | None) -> None:
    stats = measured(prefill=prefill)
    assert stats.tokens == stats.drafted == stats.accepted == 0
    assert stats.ttft_seconds is stats.decode_tokens_per_second is stats.itl_ms is None
    assert stats.tokens_per_emission is stats.overhead_ms_per_token is stats.acceptance is stats.bandwidth_share is None
    assert stats.prefill_tokens_per_second == (200 if prefill else None)


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    stats = measured((0, 1), (0, 1), prefill=0)
    assert stats.decode_tokens_per_second is stats.prefill_tokens_per_second is None
    assert stats.itl_ms == Percentiles(0, 0, 0)


def test_overhead_is_what_the_engine_did_not_take() -> None:
    assert measured((0.1, 1), *[(0.1, 1)] * 10, engine=0.9).overhead_ms_per_token == pytest.approx(10)
    assert measured((0.1, 1), *[(0.1, 1)] * 10, engine=1.1).overhead_ms_per_token == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.sampled_from([0, 0.5, 0.9, 0.99, 1]))
def test_percentiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert percentile(sorted(values), share) == pytest.approx(float(np.percentile(values, 100 * share)))


def drafted_answer(*rounds: tuple[float, int, int]) -> Stats:
    """Rounds of (seconds, drafted, accepted) after a first token; of each 10 ms are the draft's and 20 the target's."""
    clock = Clock()
    meter = Meter(clock, 10, 0, load_seconds=0.0)
    meter.emitted(1, 0, 0)
    for seconds, drafted, accepted in rounds:
        clock.now += seconds
        meter.emitted(accepted + 1, drafted, accepted)
    meter.engine_seconds(verify=0.02 * len(rounds), draft=0.01 * len(rounds))
    return meter.stats()


def test_the_gain_is_over_the_plain_rounds_of_the_same_answer() -> None:
    """Six plain rounds of 90 to 110 ms a token, six of 150 ms that gave three: 24 tokens in 1.5 s."""
    stats = drafted_answer(*[(0.1 + 0.01 * (number % 3 - 1), 0, 0) for number in range(6)], *[(0.15, 4, 2)] * 6)
    gain = stats.gain
    assert gain is not None
    assert (gain.value, gain.plain_rounds) == (pytest.approx(0.1 / (1.5 / 24)), 6)
    assert 1.4 < gain.low < gain.value < gain.high < 1.8
    assert stats.accepted_length == 2
    assert (stats.draft_seconds, stats.verify_seconds, stats.python_seconds) == tuple(map(pytest.approx, (0.12, 0.24, 1.14)))
    assert stats.depths == (0,) * 6 + (4,) * 6


def test_a_gain_that_nothing_tells_is_none() -> None:
    assert drafted_answer(*[(0.1, 0, 0)] * 4, *[(0.1, 4, 4)] * 20).gain is None, "too few plain rounds"
    assert drafted_answer(*[(0.1, 0, 0)] * 20).gain is None, "nothing was drafted"
    assert drafted_answer().depths == ()


def test_depths_of_a_long_answer_are_means_of_equal_parts() -> None:
    stats = drafted_answer(*[(0.1, 8 * (number < 320), 0) for number in range(640)])
    assert stats.depths == (8.0,) * 16 + (0.0,) * 16

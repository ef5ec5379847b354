"""Which share of the measured bandwidth an answer reached."""

import dataclasses

import pytest

from tests.unit.test_app import PLAN
from tests.unit.test_bench import STATS
from tests.unit.test_memory import INFO
from tokencli.core import Plan, Stats
from tokencli.plan.share import bandwidth_share

ON_CPU = dataclasses.replace(PLAN, backend="cpu", device=None, gpu_layers=0)
BANDWIDTH = 10**9


def test_it_is_of_the_bytes_that_passes_read() -> None:
    none_cached = dataclasses.replace(STATS, prompt_tokens=0, tokens=1)
    share = bandwidth_share(ON_CPU, INFO, none_cached, BANDWIDTH)
    assert share == pytest.approx(INFO.active_bytes * 10.0 / BANDWIDTH)
    with_cache = bandwidth_share(ON_CPU, INFO, STATS, BANDWIDTH)
    assert with_cache
    assert with_cache > share


def test_tokens_that_come_together_are_of_one_pass() -> None:
    alone, together = (
        bandwidth_share(ON_CPU, INFO, dataclasses.replace(STATS, tokens_per_emission=each), BANDWIDTH) for each in (1.0, 4.0)
    )
    assert alone
    assert together == pytest.approx(alone / 4)


@pytest.mark.parametrize(
    ("plan", "stats", "bandwidth"),
    [
        (ON_CPU, STATS, None),
        (dataclasses.replace(PLAN, gpu_layers=3), STATS, BANDWIDTH),
        (ON_CPU, dataclasses.replace(STATS, decode_tokens_per_second=None), BANDWIDTH),
    ],
)
def test_what_is_not_known_is_none(plan: Plan, stats: Stats, bandwidth: int | None) -> None:
    assert bandwidth_share(plan, INFO, stats, bandwidth) is None

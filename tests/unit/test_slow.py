"""An answer far below its prediction is told with likely causes; anything else is not (report A7-12)."""

import dataclasses

import pytest

from tests.unit.test_planner import IGPU, TARGET, machine
from tokencli.core import Plan, Prediction, Stats
from tokencli.plan.slow import slower_than_predicted

PREDICTED = Prediction(decode_tokens_per_second=20.0, origin="predicted")
PLAN = Plan(TARGET.model, "vulkan", 11, 4096, 8, device="Vulkan0", predicted=PREDICTED)
STATS = Stats(10, 0, 64, 1.0, 0.5, 100.0, 7.9, None, None, 0, 0, None)


def test_the_causes_of_this_machine_come_first() -> None:
    here = dataclasses.replace(machine(dataclasses.replace(IGPU, performance_level="auto")), on_ac=False, cpu_quota=2.0)
    told = slower_than_predicted(PLAN, STATS, here)
    assert told
    assert told.startswith(
        "7.9 tokens/s, where 20.0 were predicted: it runs on battery; Vulkan0 is at performance level auto; "
        "a control group grants 2 CPUs; other programs"
    )


@pytest.mark.parametrize(
    ("plan", "stats"),
    [
        (PLAN, dataclasses.replace(STATS, decode_tokens_per_second=8.0)),
        (PLAN, dataclasses.replace(STATS, decode_tokens_per_second=None)),
        (PLAN, dataclasses.replace(STATS, tokens=15)),
        (dataclasses.replace(PLAN, predicted=Prediction()), STATS),
    ],
)
def test_what_is_as_expected_or_not_known_is_not_said(plan: Plan, stats: Stats) -> None:
    assert slower_than_predicted(plan, stats, machine(IGPU)) is None

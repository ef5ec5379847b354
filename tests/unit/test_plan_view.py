"""The lines of a plan's speed: what is known, how it is known, and nothing else."""

import dataclasses

import pytest

from tests.unit.test_views import ON_CPU, ON_GPU
from tokencli.cli.plan_view import speed_lines
from tokencli.cli.views import rounded
from tokencli.core import Prediction


def test_a_speed_is_told_with_its_origin_and_without_the_gain_of_a_draft() -> None:
    told = "decode about 12 tokens/s, prefill 300 tokens/s, TTFT for 512 tokens 0.5 s"
    assert speed_lines(ON_GPU) == [f"predicted: {told} (without the draft)"]
    calibrated = dataclasses.replace(ON_CPU, predicted=Prediction(0.5, 300.0, 12.0, "calibrated"), context=256)
    assert speed_lines(calibrated) == [f"calibrated: {told.replace('512', '256')}"]


def test_what_is_not_known_is_left_out() -> None:
    assert speed_lines(ON_CPU) == []
    decode_only = dataclasses.replace(ON_CPU, predicted=Prediction(decode_tokens_per_second=12.345, origin="predicted"))
    assert speed_lines(decode_only) == ["predicted: decode about 12 tokens/s"]


@pytest.mark.parametrize(("number", "shown"), [(12.345, "12"), (0.0523, "0.052"), (19444.0, "19000"), (7.96, "8"), (0.5, "0.5")])
def test_a_prediction_has_two_digits(number: float, shown: str) -> None:
    assert rounded(number) == shown

"""The form of what was typed; what it means is decided elsewhere."""

import math

import pytest

from tokencli.cli.options import check_range, cpu_moe, gpu_layers
from tokencli.errors import UsageError


@pytest.mark.parametrize(("typed", "layers"), [(None, None), ("all", -1), ("0", 0), ("20", 20), ("099", 99)])
def test_gpu_layers_is_a_count_or_all_or_left_to_us(typed: str | None, layers: int | None) -> None:
    assert gpu_layers(typed) == layers
    assert cpu_moe(typed) == layers


@pytest.mark.parametrize("typed", ["", "-1", "+1", "1.5", "ALL", "some", " 1", "1e3", "0x10", "²"])
def test_other_gpu_layers_are_refused(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_layers(typed)
    assert caught.value.what.startswith(f"--gpu-layers {typed}")
    assert "all" in caught.value.hint
    with pytest.raises(UsageError, match="--cpu-moe"):
        cpu_moe(typed)


@pytest.mark.parametrize("value", [None, 0, 1, 0.5])
def test_a_value_inside_its_limits_or_not_given_passes(value: float | None) -> None:
    check_range(("--top-p", value, 0, 1))


@pytest.mark.parametrize("value", [-0.001, 1.001, math.nan, math.inf, -math.inf])
def test_a_value_outside_its_limits_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match=rf"--top-p {value}") as caught:
        check_range(("--seed", None, 0, 1), ("--top-p", value, 0, 1), ("--min-p", value, 0, 1))
    assert caught.value.hint == "give a value from 0 to 1"
    assert caught.value.exit_code == 2


def test_large_limits_are_written_for_people() -> None:
    with pytest.raises(UsageError) as caught:
        check_range(("--context", 1 << 30, 1, 1 << 24))
    assert caught.value.hint == "give a value from 1 to 16,777,216"

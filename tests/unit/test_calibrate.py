"""Constants of made-up machines, found again from noisy runs; what runs do not tell is refused by name."""

import dataclasses
import math
import random
import subprocess
import sys

import pytest

from tokencli.core import Calibration
from tokencli.tune.calibrate import CACHE, LAYER, Fit, Run, fit, seconds_of

GB, MB = 10**9, 10**6
PRIOR = 20e-6
TRUE = Calibration(
    "CPU", 2, {"F16": 40.0 * GB, "Q8_0": 34.0 * GB, "Q4_1": 22.0 * GB}, 60e-6, 15.0 * GB, {"F16": 5e12, "Q8_0": 9e12}
)
WIDE = {"F16": (244 * MB, 2), "Q8_0": (194 * MB, 3), "Q4_1": (190 * MB, 5)}


def run(name: str, weights: dict[str, float], layers: int, cache: float = 0.0, noise: float = 0.0, seed: int = 0) -> Run:
    """As the made-up machine would measure it."""
    bare = Run(name, weights, layers, 1.0, cache, prompt_tokens=64, prompt_weights=sum(weights.values()))
    off = 1 + noise * random.Random(f"{name} {seed}").uniform(-1, 1)
    exact = seconds_of(bare, TRUE)
    assert exact
    (first, *more) = weights
    prompt = 64 * bare.prompt_weights / TRUE.prefill[first] + layers * TRUE.layer_seconds if first in TRUE.prefill else None
    return dataclasses.replace(bare, seconds=exact * off, prompt_seconds=None if more else prompt, spread=max(noise, 0.01))


def runs(noise: float = 0.0, seed: int = 0) -> list[Run]:
    wide = [run(name, {name: size}, layers, 0, noise, seed) for name, (size, layers) in WIDE.items()]
    narrow = run("narrow", {"Q8_0": 103 * MB}, 32, 0, noise, seed)
    model, norms = {"Q4_1": 66 * MB, "Q8_0": 30 * MB}, 0.1 * MB
    own = [run(f"own at {mb}", model, 30, mb * MB, noise, seed) for mb in (1, 12)]
    own = [dataclasses.replace(each, weights={**model, "Q4_1": model["Q4_1"] - norms, "F32": norms}) for each in own]
    return [*wide, narrow, *own]


def fitted(*given: Run, nominal: float | None = None) -> Fit:
    return fit(given, "CPU", 2, PRIOR, nominal)


def test_constants_are_found_again() -> None:
    found = fitted(*runs())
    assert found.refused == ()
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.calibration
    assert (found.calibration.device, found.calibration.threads) == ("CPU", 2)
    assert found.calibration.decode == pytest.approx(TRUE.decode)
    assert found.calibration.layer_seconds == pytest.approx(TRUE.layer_seconds)
    assert found.calibration.cache == pytest.approx(TRUE.cache)
    assert found.calibration.prefill == pytest.approx(TRUE.prefill)


def test_other_models_are_predicted_within_the_noise() -> None:
    """Quants and depths that were not measured, from runs with 5 % of noise, on 100 seeded machines."""
    others = [({"F16": 269 * MB}, 30), ({"F16": 481 * MB}, 60), ({"Q8_0": 143 * MB}, 30), ({"Q8_0": 258 * MB}, 60)]
    off = []
    for seed in range(100):
        calibration = fitted(*runs(0.05, seed)).calibration
        assert calibration
        for weights, layers in others:
            other = run("other", weights, layers, 6 * MB)
            seconds = seconds_of(other, calibration)
            assert seconds
            off.append(abs(seconds / other.seconds - 1))
    assert sorted(off)[len(off) * 95 // 100] < 0.08
    assert max(off) < 0.15


def test_the_difference_of_two_depths_is_the_cache_however_badly_the_model_is_met() -> None:
    *given, short, deep = runs()
    odd = [dataclasses.replace(each, seconds=each.seconds + 1e-3) for each in (short, deep)]
    between = Run("cache", {}, 0, deep.seconds - short.seconds, deep.cache - short.cache)
    found = fitted(*given, odd[0], between)
    assert found.calibration
    assert found.calibration.cache == pytest.approx(TRUE.cache, rel=0.05)


def test_one_model_alone_does_not_tell_a_layer_from_reading() -> None:
    alone = run("one", {"F16": 269 * MB}, 30)
    found = fitted(alone)
    assert found.calibration
    assert found.calibration.layer_seconds == PRIOR
    assert [each.split(":")[0] for each in found.refused] == [LAYER]
    assert "do not tell it from the rest" in found.refused[0]
    assert found.calibration.decode == pytest.approx({"F16": 269 * MB / (alone.seconds - 30 * PRIOR)})
    assert seconds_of(alone, found.calibration) == pytest.approx(alone.seconds), "the model itself is met"


def test_two_types_that_are_only_seen_together_are_both_refused() -> None:
    own = [run(f"own {layers}", {"Q4_1": 66 * MB * layers, "Q8_0": 30 * MB * layers}, 30 * layers) for layers in (1, 2)]
    found = fitted(*own)
    assert found.calibration is None
    assert any(each.startswith("Q4_1: these runs do not tell it") for each in found.refused)
    beside = fitted(*own, run("wide", {"F16": 244 * MB}, 2))
    assert beside.calibration
    assert set(beside.calibration.decode) == {"F16"}, "what is told stands"


def test_a_layer_that_costs_less_than_the_noise_is_refused() -> None:
    large = [run(name, {name: 60 * size}, layers) for name, (size, layers) in WIDE.items()]
    noisy = [dataclasses.replace(each, spread=0.05) for each in [*large, run("own", {"F16": 20_000 * MB}, 48)]]
    found = fitted(*noisy)
    assert found.calibration
    assert found.calibration.layer_seconds == PRIOR
    assert any(each.startswith(f"{LAYER}: too small in these runs") for each in found.refused)


def test_what_cannot_be_is_discarded_with_the_reason() -> None:
    """A layer that would cost less than nothing: the narrow model was measured in a quieter moment."""
    quick = [dataclasses.replace(each, seconds=each.seconds / 3) if each.layers == 32 else each for each in runs()[:4]]
    found = fitted(*quick)
    assert found.calibration
    assert found.calibration.layer_seconds == PRIOR
    assert any(each.startswith(LAYER) and "impossible" in each for each in found.refused)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_leaves_its_run_out(seconds: float) -> None:
    found = fitted(*runs(), Run("broken", {"Q6_K": 200.0 * MB}, 4, seconds))
    assert found.refused == (f"the run of broken: {seconds} is no time",)
    assert found.calibration
    assert set(found.calibration.decode) == set(WIDE)


def test_nothing_is_read_faster_than_the_data_sheet_allows() -> None:
    found = fitted(*runs(), nominal=35 * GB)
    assert found.calibration
    assert set(found.calibration.decode) == {"Q8_0", "Q4_1"}
    assert "the speed of F16: 40 GB/s, more than the 35 GB/s of the data sheet" in found.refused


def test_the_cache_is_refused_where_all_were_measured_behind_as_much_of_it() -> None:
    same = [dataclasses.replace(each, cache=sum(each.weights.values()) / 10) for each in (run("one", {"F16": 269 * MB}, 30),)]
    found = fitted(*same)
    assert [each.split(":")[0] for each in found.refused] == [CACHE, LAYER]
    assert found.calibration
    assert found.calibration.cache is None


def test_a_prompt_that_took_less_than_its_layers_is_discarded() -> None:
    wide, *rest = runs()
    found = fitted(dataclasses.replace(wide, prompt_seconds=1e-6), *rest)
    assert found.calibration
    assert set(found.calibration.prefill) == {"Q8_0"}
    assert any(each.startswith("the speed of F16 in a prompt") for each in found.refused)


def test_no_runs_are_no_calibration() -> None:
    assert fitted() == Fit(None)


def test_numpy_is_loaded_only_to_fit() -> None:
    code = "import sys, tokencli.tune.calibrate; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_run_that_other_work_slowed_counts_for_little_and_is_told() -> None:
    for seed in range(50):
        *given, short, deep = runs(0.03, seed)
        slowed = dataclasses.replace(short, name="slowed", seconds=2.5 * short.seconds)
        found = fitted(*given, short, deep, slowed)
        assert found.calibration
        assert [each.split(":")[0] for each in found.refused] == ["the run of slowed"]
        other = run("other", {"Q8_0": 258 * MB}, 60)
        assert seconds_of(other, found.calibration) == pytest.approx(other.seconds, rel=0.15)


def test_runs_that_contradict_each_other_are_no_calibration() -> None:
    own = [dataclasses.replace(run("own", {"F16": 269 * MB}, 30)) for _ in range(2)]
    slow = [dataclasses.replace(each, seconds=3 * each.seconds) for each in own]
    found = fitted(*own, *slow)
    assert found.calibration is None
    assert found.refused[-1] == "all of it: these runs contradict each other, as they do beside other work"

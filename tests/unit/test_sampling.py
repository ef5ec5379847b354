"""The sampler chain against llama.cpp's definitions, and the one random number per position and token."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencli.core import Sampling
from tokencli.decode.sampling import Candidates, candidates, gumbel, pick
from tokencli.errors import EngineError

WHOLE = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)


def by_definition(logits: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """{id: probability}, most probable first: top-k, then top-p on the rest, min-p, temperature. A softmax at every step."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: sampling.top_k or None]
    if sampling.top_p < 1:
        shares = softmax([logits[token] for token in order])
        reached = np.cumsum(shares) >= sampling.top_p
        order = order[: int(reached.argmax()) + 1 if reached.any() else None]
    best = logits[order[0]]
    order = [token for token in order if math.exp(logits[token] - best) >= sampling.min_p]
    return dict(zip(order, softmax([logits[token] / sampling.temperature for token in order]), strict=True))


def softmax(values: Sequence[float]) -> list[float]:
    weights = np.exp(np.array(values, dtype=np.float64) - max(values))
    return list(weights / weights.sum())


def some_logits(size: int, spread: float, seed: int, digits: int | None) -> np.ndarray:
    """Random logits; few digits make many ties."""
    values = np.random.default_rng(seed).normal(scale=spread, size=size)
    return (values if digits is None else values.round(digits)).astype(np.float32)


@given(
    size=st.sampled_from([1, 2, 63, 64, 2559, 2560, 2561, 6000]),  # below and above 64 * top_k
    spread=st.sampled_from([0.0, 0.01, 1.0, 4.0, 20.0]),
    digits=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 1 << 32),
    top_k=st.sampled_from([0, 1, 2, 40, 100, 1 << 20]),
    top_p=st.sampled_from([0.0, 0.3137, 0.9137, 0.9971, 1.0]),
    min_p=st.sampled_from([0.0, 0.0513, 0.713, 1.0]),
    temperature=st.sampled_from([0.1, 0.8, 1.0, 3.0]),
)
def test_the_chain_is_that_of_llama_cpp(
    size: int, spread: float, digits: int | None, seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = some_logits(size, spread, seed, digits)
    sampling = Sampling(temperature, top_k, top_p, min_p)
    found = candidates(logits, sampling)
    expected = by_definition([float(logit) for logit in logits], sampling)
    assert found.ids.tolist() == list(expected)
    np.testing.assert_allclose(np.exp(found.log_probabilities), list(expected.values()), rtol=1e-6, atol=1e-300)
    assert np.exp(found.log_probabilities).sum() == pytest.approx(1)


@pytest.mark.parametrize("size", [3, 100, 5000])
def test_temperature_zero_takes_the_most_probable_and_of_equals_the_first(size: int) -> None:
    logits = np.zeros(size, dtype=np.float32)
    logits[[1, size - 1]] = 5
    found = candidates(logits, Sampling(temperature=0))
    assert (found.ids.tolist(), found.log_probabilities.tolist()) == ([1], [0.0])
    assert pick(found, seed=3, position=8) == 1


def test_equal_logits_are_taken_by_id() -> None:
    found = candidates(np.zeros(10_000, dtype=np.float32), Sampling(top_k=40, top_p=1, min_p=0))
    assert found.ids.tolist() == list(range(40))


def test_a_flat_vocabulary_is_looked_through_as_far_as_top_p_reaches() -> None:
    found = candidates(np.zeros(50_000, dtype=np.float32), Sampling(temperature=1, top_k=0, top_p=0.50001, min_p=0))
    assert found.ids.tolist() == list(range(25_001))


@pytest.mark.parametrize("at", [0, 1, 77, 78, 4991, 4992, 4999])
@pytest.mark.parametrize("top_k", [2, 40, 77, 78, 79])
def test_the_largest_logits_are_found_wherever_they_stand(at: int, top_k: int) -> None:
    logits = np.linspace(0, -1, 5000, dtype=np.float32)  # 78 whole groups of 64, and 8 more
    logits[at] = 2
    found = candidates(logits, Sampling(top_k=top_k, top_p=1, min_p=0))
    assert found.ids.tolist() == [at, *(token for token in range(top_k) if token != at)][:top_k]


@pytest.mark.parametrize(("equals", "kept"), [(1, 1), (2, 1), (4, 2), (8, 4)])
def test_the_token_that_reaches_top_p_is_the_last_to_stay(equals: int, kept: int) -> None:
    assert len(candidates(np.zeros(equals, dtype=np.float32), Sampling(top_p=0.5)).ids) == kept


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 500, 4999])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_output_that_is_no_number_is_an_error(broken: float, at: int, temperature: float) -> None:
    logits = some_logits(5000, 1, 0, None)
    logits[at] = broken
    with pytest.raises(EngineError, match="not a number") as caught:
        candidates(logits, Sampling(temperature))
    assert "--gpu-layers 0" in caught.value.hint


def test_a_row_of_minus_infinity_is_an_error() -> None:
    with pytest.raises(EngineError, match="not a number"):
        candidates(np.full(100, -np.inf, dtype=np.float32), Sampling())


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0), WHOLE],
    ids=["default", "greedy", "whole"],
)
def test_a_token_masked_with_minus_infinity_is_never_picked(sampling: Sampling) -> None:
    logits = np.full(100, -np.inf, dtype=np.float32)
    logits[[7, 9]] = [1, 2]
    found = candidates(logits, sampling)
    assert np.exp(found.log_probabilities).sum() == pytest.approx(1)
    assert {pick(found, 0, position) for position in range(50)} <= {7, 9}


@given(
    weights=st.lists(st.floats(1e-6, 1), min_size=2, max_size=60),
    seed=st.integers(0, (1 << 64) - 1),
    position=st.integers(0, 1 << 20),
    data=st.data(),
)
def test_a_pick_wins_in_every_subset_that_holds_it(weights: list[float], seed: int, position: int, data: st.DataObject) -> None:
    ids = np.random.default_rng(len(weights)).permutation(50_000)[: len(weights)]
    whole = Candidates(ids, np.log(np.array(weights) / sum(weights)))
    winner = pick(whole, seed, position)
    others = data.draw(st.lists(st.sampled_from(range(len(ids))), unique=True))
    kept = [index for index in others if ids[index] != winner] + [ids.tolist().index(winner)]
    part = whole.log_probabilities[kept]
    assert pick(Candidates(ids[kept], part - np.log(np.exp(part).sum())), seed, position) == winner


def test_a_pick_is_the_same_again_and_another_elsewhere() -> None:
    even = Candidates(np.arange(1000), np.full(1000, -math.log(1000)))
    assert [pick(even, 5, position) for position in range(20)] == [pick(even, 5, position) for position in range(20)]
    assert len({pick(even, 5, position) for position in range(100)}) > 80
    assert len({pick(even, seed, 5) for seed in range(100)}) > 80


@pytest.mark.parametrize("seed", [0, 1, (1 << 32) - 1, (1 << 64) - 1])
def test_noise_is_standard_gumbel_for_every_seed(seed: int) -> None:
    noise = np.concatenate([gumbel(seed, position, np.arange(200)) for position in range(500)])
    assert noise.mean() == pytest.approx(0.5772, abs=0.015)  # Euler's gamma
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.04)
    counts, _ = np.histogram(np.exp(-np.exp(-noise)), bins=20, range=(0, 1))  # uniform, if it is Gumbel
    assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_noise_is_independent_between_positions_tokens_and_seeds() -> None:
    ids = np.arange(100_000)
    here, elsewhere, reseeded = gumbel(1, 7, ids), gumbel(1, 8, ids), gumbel(2, 7, ids)
    for other in (elsewhere, reseeded, np.roll(here, 1), gumbel(7, 1, ids)):
        assert abs(np.corrcoef(here, other)[0, 1]) < 0.013  # four standard deviations


def test_noise_belongs_to_the_token_not_to_its_place() -> None:
    ids = np.array([30_000, 7, 151_000])
    assert gumbel(3, 4, ids).tolist() == [gumbel(3, 4, np.array([token]))[0] for token in ids]


@pytest.mark.parametrize("sampling", [WHOLE, Sampling(temperature=2, top_k=0, top_p=1, min_p=0), Sampling(1, 3, 0.9, 0.2)])
def test_tokens_are_picked_as_often_as_they_are_probable(sampling: Sampling) -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    found = candidates(logits, sampling)
    expected = 6000 * np.exp(found.log_probabilities)
    picks = [pick(found, 11, position) for position in range(6000)]
    counts = np.array([picks.count(token) for token in found.ids])
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001

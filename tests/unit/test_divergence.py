"""KL divergence and costs from rows of logits, by sums done by hand, and the figures of a text with their intervals."""

import math
import random
import statistics

import numpy as np
import pytest

from tokencli.core import Scored
from tokencli.decode.divergence import apart, costs, log_probabilities
from tokencli.errors import EngineError
from tokencli.tune.quality import Figure, figures, jackknife, student


def rows(*probabilities: tuple[float, ...], shift: float = 0.0) -> np.ndarray:
    """Logits with these probabilities; a shift of all changes none."""
    with np.errstate(divide="ignore"):
        return (np.log(np.array(probabilities)) + shift).astype(np.float32)


class TestRows:
    def test_a_row_costs_minus_the_logarithm_of_its_tokens_probability(self) -> None:
        found = costs(log_probabilities(rows((0.5, 0.25, 0.25), (0.1, 0.1, 0.8), shift=7.0)), [1, 2])
        assert found == pytest.approx([math.log(4), -math.log(0.8)], abs=1e-6)

    def test_the_divergence_is_the_sum_over_the_vocabulary(self) -> None:
        found = apart(rows((0.5, 0.5)), rows((0.25, 0.75), shift=-3.0), [0])
        assert found.divergences == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3)], abs=1e-6)
        assert found.costs == pytest.approx([math.log(2)], abs=1e-6)
        assert apart(rows((0.6, 0.4), (0.6, 0.4)), rows((0.7, 0.3), (0.3, 0.7)), [0, 0]).same_top == 1

    def test_of_equal_rows_it_is_nothing_at_all(self) -> None:
        logits = np.random.default_rng(1).normal(0, 8, (50, 5000)).astype(np.float32)
        found = apart(logits, logits.copy(), [0] * 50)
        assert (found.divergences == 0).all()
        assert found.same_top == 50

    def test_it_is_never_less_than_nothing(self) -> None:
        source = np.random.default_rng(2)
        one = source.normal(0, 5, (200, 300)).astype(np.float32)
        other = one + source.normal(0, 1e-3, one.shape).astype(np.float32)
        assert (apart(one, other, [0] * 200).divergences > -1e-12).all()

    def test_a_token_without_any_chance_in_both_counts_nothing(self) -> None:
        found = apart(rows((0.5, 0.5, 0.0)), rows((0.25, 0.75, 0.0)), [0])
        assert found.divergences == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3)], abs=1e-6)

    def test_logits_far_apart_do_not_overflow(self) -> None:
        found = apart(np.array([[1e4, 0, -1e4]], np.float32), np.array([[0, 1e4, 0]], np.float32), [0])
        assert found.divergences == pytest.approx([1e4])

    def test_what_is_not_a_number_is_an_error(self) -> None:
        with pytest.raises(EngineError, match="not a number"):
            log_probabilities(np.array([[0, np.nan]], np.float32))


def chunk(number: int, costs: list[float], reference: list[float], divergences: list[float], same: int) -> Scored:
    return Scored(number, 2, tuple(costs), tuple(reference), tuple(divergences), same)


class TestFigures:
    TWO = (chunk(1, [1.0, 3.0], [1.0, 2.0], [0.1, 0.3], 2), chunk(2, [2.0, 2.0], [1.0, 2.0], [0.0, 0.4], 1))

    def test_they_are_of_all_tokens(self) -> None:
        found = figures(self.TWO)
        assert (found.chunks, found.tokens) == (2, 4)
        assert found.perplexity.value == pytest.approx(math.exp(2))
        assert found.reference_perplexity
        assert found.reference_perplexity.value == pytest.approx(math.exp(1.5))
        assert found.perplexity_lost
        assert found.perplexity_lost.value == pytest.approx(100 * (math.exp(0.5) - 1))
        assert found.mean_divergence
        assert found.mean_divergence.value == pytest.approx(0.2)
        assert found.high_divergence
        assert found.high_divergence.value == pytest.approx(np.percentile([0.1, 0.3, 0.0, 0.4], 99))
        assert found.same_top
        assert found.same_top.value == 0.75

    def test_without_a_reference_there_is_the_perplexity_alone(self) -> None:
        found = figures([Scored(1, 2, (1.0, 3.0)), Scored(2, 2, (2.0, 2.0))])
        assert found.perplexity.value == pytest.approx(math.exp(2))
        assert found.mean_divergence is found.same_top is found.perplexity_lost is found.reference_perplexity is None

    def test_one_chunk_has_no_interval(self) -> None:
        assert figures(self.TWO[:1]).mean_divergence == Figure(pytest.approx(0.2))

    def test_of_a_mean_the_interval_is_students_of_the_chunks_means(self) -> None:
        means = [0.1, 0.4, 0.2, 0.3, 0.9]
        found = jackknife(
            [chunk(1, [0], [0], [mean], 0) for mean in means], lambda each: statistics.fmean(one.divergences[0] for one in each)
        )
        half = 2.132 * statistics.stdev(means) / math.sqrt(5)
        assert (found.low, found.high) == pytest.approx((statistics.fmean(means) - half, statistics.fmean(means) + half))

    def test_an_interval_ends_where_its_figure_must(self) -> None:
        found = figures([chunk(1, [1], [1], [0.0], 1), chunk(2, [1], [1], [0.5], 0)])
        assert found.mean_divergence
        assert found.mean_divergence.low == 0
        assert found.same_top
        assert (found.same_top.low, found.same_top.high) == (0, 1)

    def test_equal_models_have_an_interval_of_no_width(self) -> None:
        found = figures([chunk(at, [1.5, 2.5], [1.5, 2.5], [0, 0], 2) for at in (1, 2, 3)])
        assert found.mean_divergence == found.high_divergence == found.perplexity_lost == Figure(0, 0, 0)
        assert found.same_top == Figure(1, 1, 1)

    @pytest.mark.parametrize(("freedom", "known"), [(1, 6.314), (4, 2.132), (5, 2.015), (7, 1.895), (15, 1.753), (60, 1.671)])
    def test_students_quantiles_are_those_of_the_tables(self, freedom: int, known: float) -> None:
        assert student(freedom) == pytest.approx(known, abs=0.01)

    @pytest.mark.parametrize("which", ["mean_divergence", "perplexity_lost", "same_top"])
    def test_the_interval_of_eight_chunks_holds_the_truth_nine_times_in_ten(self, which: str) -> None:
        """Chunks that differ more than their tokens do, divergences as skewed as real ones."""
        source, held, rounds = random.Random(5), 0, 300
        truth = {"mean_divergence": 0.2, "perplexity_lost": 100 * math.expm1(0.05), "same_top": 0.7}[which]
        for _ in range(rounds):
            found = getattr(figures([made_up(source, number) for number in range(8)]), which)
            held += found.low <= truth <= found.high
        assert 0.83 <= held / rounds <= 0.96


def made_up(source: random.Random, number: int) -> Scored:
    kind, count = source.uniform(-1, 1), 40
    costs = [source.expovariate(1 / 3) for _ in range(count)]
    lost = [0.05 + 0.05 * kind + source.gauss(0, 0.3) for _ in range(count)]
    divergences = [source.expovariate(1 / (0.2 + 0.1 * kind)) for _ in range(count)]
    same = sum(source.random() < 0.7 + 0.1 * kind for _ in range(count))
    return chunk(number, [cost + more for cost, more in zip(costs, lost, strict=True)], costs, divergences, same)

"""Predicted speeds: published rows, sums by hand, and what must hold of any model and machine."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import speed_rows, zoo_cases
from tests.speed_fit import fitted
from tests.speed_rows import percentile
from tokencli.core import Device, Draft, Machine, Model, ModelInfo, Plan, Prediction, Rates, Speeds, Vocabulary
from tokencli.errors import UsageError
from tokencli.plan.speed import (
    best_depth,
    draft_seconds,
    expected_tokens,
    factor,
    pass_seconds,
    predict,
    prefill_seconds,
    reads,
    speculation_gain,
)
from tokencli.world.catalogue import data_folder
from tokencli.world.settings import parse_speeds, read_speeds

SHIPPED = read_speeds(data_folder())
MB, GB, TERA = 10**6, 10**9, 10**12
LAYERS = 10


def info(block: int = 100 * MB, layers: int = LAYERS, **more: object) -> ModelInfo:
    """Equal blocks, 4 KV heads of 128, a byte per weight."""
    none = (0,) * layers
    own = ModelInfo(
        architecture="llama", quant="Q8_0", layers=layers, context_trained=None, embedding_length=2048,
        vocabulary=Vocabulary(32000, "gpt2", 1, 2, False, False, None), chat_template=None,
        file_bytes=layers * block + 200 * MB, weight_bytes=layers * block + 200 * MB, block_bytes=(block,) * layers,
        expert_bytes=none, input_bytes=100 * MB, output_bytes=100 * MB, tied=False, kv_heads=(4,) * layers,
        key_lengths=(128,) * layers, value_lengths=(128,) * layers, sliding_layers=(False,) * layers,
        recurrent_layers=(False,) * layers, recurrent_bytes=none, parameters=layers * block + 200 * MB,
    )  # fmt: skip
    return dataclasses.replace(own, **more)  # type: ignore[arg-type]


def plan(gpu_layers: int = 0, **more: object) -> Plan:
    own = Plan(Model("m", "", "", "llama", 0, LAYERS, None), "cuda" if gpu_layers else "cpu", gpu_layers, 8192, 4)
    return dataclasses.replace(own, device="CUDA0" if gpu_layers else None, **more)  # type: ignore[arg-type]


def machine(host: float | None = 50 * GB, card: float | None = 200 * GB, operations: float | None = 10 * TERA) -> Machine:
    cpu = Device("CPU", "cpu", "", 0, 0, None, host, operations and operations / 20)
    return Machine(4, 0, 0, (Device("CUDA0", "gpu", "", 0, 0, None, card, operations), cpu))


ROUND = Speeds({"cuda.gpu": Rates(0.5, 1e-4, 2.0), "cpu.cpu": Rates(0.5, 1e-5, 1.0)}, half_rows=64)


# Published rows (docs/speed.md)


def test_the_published_rows_are_met_and_none_is_left_out() -> None:
    rows = speed_rows.checked()
    errors = speed_rows.errors(rows, SHIPPED)
    assert len(rows) == len(errors) == 24
    assert percentile(errors, 0.5) <= 0.15
    assert percentile(errors, 0.9) <= 0.35


def test_the_shipped_priors_are_what_the_rows_say_and_no_more_exact() -> None:
    assert fitted(speed_rows.checked(), SHIPPED) == SHIPPED


def test_users_rows_that_nothing_was_fitted_to_are_near() -> None:
    rows, left_out = speed_rows.users()
    errors = speed_rows.errors(rows, SHIPPED)
    assert len(rows) == len(errors) >= 45
    assert len(rows) + sum(left_out.values()) == 124
    assert percentile(errors, 0.5) <= 0.15
    assert percentile(errors, 0.9) <= 0.35


def test_the_page_has_the_figures_of_the_shipped_priors() -> None:
    errors = speed_rows.errors(speed_rows.checked(), SHIPPED)
    text = (Path(__file__).resolve().parents[2] / "docs" / "speed.md").read_text("utf-8")
    found = re.search(r"no row left out \| 24 \| \*\*(.+?)\*\* \| \*\*(.+?)\*\*", text)
    assert found, "run scripts/speed_table.py"
    assert found.groups() == (f"{percentile(errors, 0.5):.1%}", f"{percentile(errors, 0.9):.1%}"), "run scripts/speed_table.py"


def test_prefill_is_of_the_right_size_on_every_published_device() -> None:
    rows = [row for row in speed_rows.more() if row.prefill]
    errors = [speed_rows.prefill(row, SHIPPED) / row.prefill - 1 for row in rows]  # type: ignore[operator]
    assert len(errors) > 12
    assert percentile(errors, 0.5) < 0.25
    assert max(map(abs, errors)) < 2


# By hand


def test_one_bus_is_bytes_over_what_is_reached_of_it_and_a_cost_per_layer() -> None:
    assert pass_seconds(plan(11), info(), machine(), ROUND) == pytest.approx(1.1 / 100 + 10 * 1e-4)
    assert pass_seconds(plan(), info(), machine(), ROUND) == pytest.approx(1.1 / 25 + 10 * 1e-5)


def test_a_split_is_both_buses_one_after_the_other_and_a_crossing() -> None:
    seconds = pass_seconds(plan(4), info(), machine(), ROUND)  # the output and three blocks on the card
    assert seconds == pytest.approx(0.4 / 100 + 4 * 1e-4 + 0.7 / 25 + 7 * 1e-5)


def test_of_a_mixture_the_experts_used_are_read_where_they_are() -> None:
    mixture = info(expert_bytes=(80 * MB,) * LAYERS, experts=16, experts_used=2)
    assert sum(each.total for each in reads(plan(11), mixture, mixture, 0)) == pytest.approx(mixture.active_bytes)
    host, card = reads(plan(11, cpu_moe_layers=4), mixture, mixture, 0)
    assert (host.experts, card.experts) == (4 * 10 * MB, 6 * 10 * MB)
    assert (host.dense, card.dense, card.output) == (0, 10 * 20 * MB, 100 * MB)
    assert (host.steps, card.steps) == (0, 10 + 4)
    _, two = reads(plan(11), mixture, mixture, 0, rows=2)
    assert two.experts == pytest.approx(10 * 80 * MB * (1 - (14 / 16) ** 2)), "two tokens may share experts"


def test_of_a_real_mixture_the_active_bytes_are_read() -> None:
    real = zoo_cases.info("qwen3-30b-a3b")
    host, card = reads(plan(49), real, real, 0)
    assert (host.total, card.total) == (0, pytest.approx(real.active_bytes, rel=1e-6))


def test_the_cache_is_read_to_its_depth_a_window_no_further_and_state_twice() -> None:
    """Report A7-16: what is fast at depth 0 need not be at 8,000 tokens."""
    per_token = 4 * (128 + 128) * 2
    _, card = reads(plan(11), info(), info(), 1000)
    assert card.cache == 10 * 1000 * per_token
    sliding = info(sliding_layers=(True,) * 9 + (False,), sliding_window=100)
    assert reads(plan(11), sliding, sliding, 1000)[1].cache == (9 * 100 + 1000) * per_token
    state = info(recurrent_bytes=(MB,) * LAYERS, kv_heads=(0,) * LAYERS)
    assert reads(plan(11), state, state, 1000)[1].cache == 20 * MB
    eighth = dataclasses.replace(plan(11), kv_type="q8_0")
    assert reads(eighth, info(), info(), 1000)[1].cache == 10 * 1000 * per_token * 34 / 64


def test_what_a_device_refuses_is_read_on_the_host() -> None:
    seen = dataclasses.replace(info(), output_bytes=0, input_bytes=200 * MB)
    host, card = reads(plan(11), info(), seen, 0)
    assert (host.output, card.output) == (100 * MB, 0)


def test_an_integrated_gpu_has_the_bus_of_the_ram() -> None:
    cpu = Device("CPU", "cpu", "", 0, 0, None, 80 * GB)
    shared = Machine(8, 0, 0, (Device("Vulkan0", "integrated", "", 0, 0), cpu))
    speeds = dataclasses.replace(ROUND, rates={"vulkan.integrated": Rates(0.5, 1e-4, 1.0)})
    on_it = dataclasses.replace(plan(11), backend="vulkan", device="Vulkan0")
    assert pass_seconds(on_it, info(), shared, speeds) == pytest.approx(1.1 / 40 + 10 * 1e-4)
    own_card = Machine(8, 0, 0, (Device("Vulkan0", "gpu", "", 0, 0), cpu))
    assert pass_seconds(on_it, info(), own_card, speeds) is None


def test_a_quant_that_waits_for_its_unpacking_needs_the_arithmetic_known() -> None:
    """Report A7-13."""
    rates = dataclasses.replace(ROUND.rates["cuda.gpu"], operations_per_weight={"Q8_0": 1000.0})
    bound = dataclasses.replace(ROUND, rates={"cuda.gpu": rates})
    assert pass_seconds(plan(11), info(), machine(), bound) == pytest.approx(1100 * MB * 1000 / (10 * TERA) + 1e-3)
    assert pass_seconds(plan(11), info(), machine(operations=None), bound) is None


def test_a_prompt_is_arithmetic_slower_in_narrow_batches_and_at_least_one_reading_of_all() -> None:
    one = 2 * 1000 * MB / (20 * TERA) * (1 + 64 / 512)
    assert prefill_seconds(plan(11), info(), machine(), ROUND, 512) == pytest.approx(512 * one + 10 * 1e-4)
    slow_bus = machine(card=GB)
    least = prefill_seconds(plan(11), info(), slow_bus, ROUND, 512)
    assert least
    assert least > 1.1 * GB / (0.5 * GB)
    assert prefill_seconds(plan(11, ubatch=64), info(), machine(), ROUND, 512) > 512 * one * 1.7  # type: ignore[operator]


def test_fewer_threads_read_a_prompt_slower() -> None:
    half = prefill_seconds(plan(threads=2), info(), machine(), ROUND, 512)
    assert half == pytest.approx(2 * prefill_seconds(plan(), info(), machine(), ROUND, 512), rel=0.01)  # type: ignore[operator]


def test_a_prediction_says_where_it_is_from_and_nothing_it_does_not_know() -> None:
    known = predict(plan(11), info(), machine(), ROUND)
    assert known.origin == "predicted"
    assert known.ttft_seconds == pytest.approx(512 / known.prefill_tokens_per_second)  # type: ignore[operator]
    assert predict(plan(11), info(), machine(), dataclasses.replace(ROUND, origin="calibrated")).origin == "calibrated"
    no_arithmetic = predict(plan(11), info(), machine(operations=None), ROUND)
    assert (no_arithmetic.ttft_seconds, no_arithmetic.prefill_tokens_per_second) == (None, None)
    assert no_arithmetic.decode_tokens_per_second == known.decode_tokens_per_second
    for unknown in (
        predict(plan(11), info(), machine(card=None), ROUND),
        predict(plan(5), info(), machine(host=None), ROUND),
        predict(plan(11), info(), machine(), Speeds({}, 40)),
        predict(plan(11), info(), Machine(4, 0, 0), ROUND),
    ):
        assert unknown == Prediction()


def test_a_prompt_is_no_longer_than_the_context() -> None:
    short = predict(plan(11, context=128), info(), machine(), ROUND)
    assert short.ttft_seconds == prefill_seconds(plan(11, context=128), info(), machine(), ROUND, 128)


def test_factors_need_both_speeds() -> None:
    fast, slow = Prediction(decode_tokens_per_second=12.0), Prediction(decode_tokens_per_second=8.0)
    assert factor(fast, slow) == 1.5
    assert factor(fast, Prediction()) is factor(Prediction(), slow) is None


# Drafts


def test_expected_tokens_are_the_sum_of_the_chances_to_get_so_far() -> None:
    assert expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert (expected_tokens(0.0, 4), expected_tokens(1.0, 4), expected_tokens(0.7, 0)) == (1, 5, 1)


def test_a_gain_is_tokens_per_time_over_that_of_plain_decoding() -> None:
    free_rows = [0.1] * 5
    assert speculation_gain(1.0, 4, 0.0, free_rows) == pytest.approx(5)
    assert speculation_gain(0.0, 4, 0.025, free_rows) == pytest.approx(0.5)
    assert speculation_gain(0.9, 0, 1.0, free_rows) == pytest.approx(1)


def test_the_best_depth_is_none_where_a_draft_does_not_pay() -> None:
    passes = [0.1, 0.11, 0.12, 0.13, 0.14]
    assert best_depth(0.1, 0.05, passes) == (0, 1.0)
    depth, gain = best_depth(0.8, 0.01, passes)
    assert depth == 4
    assert gain == speculation_gain(0.8, 4, 0.01, passes) > 1.5
    assert best_depth(0.99, 0.0, [0.1]) == (0, 1.0)


def test_a_draft_is_priced_where_it_runs_and_pays_only_when_it_is_small() -> None:
    """Report A7-17: on the host it reads from the host's bus."""
    small, target = info(5 * MB, layers=2, output_bytes=5 * MB), info()
    passes = [pass_seconds(plan(11), target, machine(), ROUND, rows=rows) for rows in range(1, 6)]
    known = [each for each in passes if each]
    beside = plan(11, draft=Draft("model", "d", "CUDA0", 4, 0.0))
    on_host = plan(11, draft=Draft("model", "d", None, 4, 0.0))
    fast, slow = (draft_seconds(each, small, machine(), ROUND) for each in (beside, on_host))
    assert fast == pytest.approx(0.015 / 100 + 2 * 1e-4)
    assert slow == pytest.approx(0.015 / 25 + 2 * 1e-5)
    assert best_depth(0.8, fast, known)[1] > 1.5  # type: ignore[arg-type]
    as_large = draft_seconds(beside, target, machine(), ROUND)
    assert as_large == known[0]
    assert best_depth(0.9, as_large, known) == (0, 1.0), "two models of a size on one bus (report D-10)"


# What must hold of any


bandwidths = st.floats(GB, 2000 * GB)
depths = st.integers(0, 100_000)
layer_counts = st.integers(0, LAYERS + 1)
some_models = st.builds(
    lambda block, share, used: info(
        block, expert_bytes=(block * share // 10,) * LAYERS, experts=64 if share else 0, experts_used=used if share else 0
    ),
    st.integers(1, GB), st.integers(0, 9), st.integers(1, 64),
)  # fmt: skip


def seconds(layers: int, model: ModelInfo, here: Machine, depth: int = 0, **more: object) -> float:
    found = pass_seconds(plan(layers, **more), model, here, SHIPPED, depth=depth)
    assert found
    return found


@given(some_models, layer_counts, bandwidths, bandwidths, st.floats(1, 10), depths)
def test_more_bandwidth_is_never_slower(m: ModelInfo, layers: int, host: float, card: float, times: float, depth: int) -> None:
    plain = seconds(layers, m, machine(host, card), depth)
    assert seconds(layers, m, machine(host * times, card), depth) <= plain
    assert seconds(layers, m, machine(host, card * times), depth) <= plain


@given(some_models, layer_counts, bandwidths, bandwidths, depths, depths)
def test_a_longer_context_is_never_faster(m: ModelInfo, layers: int, host: float, card: float, one: int, two: int) -> None:
    here = machine(host, card)
    assert seconds(layers, m, here, min(one, two)) <= seconds(layers, m, here, max(one, two))
    assert seconds(layers, m, here, one, kv_type="q8_0") <= seconds(layers, m, here, one)


@given(some_models, st.integers(1, LAYERS), bandwidths, bandwidths, depths)
def test_a_layer_more_on_a_faster_device_is_never_slower(m: ModelInfo, layers: int, host: float, card: float, depth: int) -> None:
    """Faster for a block of this model, with what a device charges per block."""
    here = machine(host, card)
    one_block = dataclasses.replace(m, layers=1, block_bytes=m.block_bytes[:1], output_bytes=0)
    host_block, card_block = seconds(0, one_block, here, depth), seconds(2, one_block, here, depth)
    if card_block <= host_block:
        assert seconds(layers + 1, m, here, depth) <= seconds(layers, m, here, depth) * (1 + 1e-9)


@given(some_models, layer_counts, st.integers(0, LAYERS), depths)
def test_nothing_is_read_twice_or_not_at_all(m: ModelInfo, layers: int, experts: int, depth: int) -> None:
    host, card = reads(plan(layers, cpu_moe_layers=experts), m, m, depth)
    assert min(host.dense, host.experts, host.output, host.cache, card.dense, card.experts, card.output, card.cache) >= 0
    assert host.total + card.total - host.cache - card.cache == pytest.approx(m.active_bytes, rel=1e-6)


@given(some_models, layer_counts, st.integers(1, 16), depths)
def test_a_wider_pass_costs_more_but_less_than_as_many_passes(m: ModelInfo, layers: int, rows: int, depth: int) -> None:
    here, one = machine(), seconds(layers, m, machine(), depth)
    wide = pass_seconds(plan(layers), m, here, SHIPPED, depth=depth, rows=rows)
    wider = pass_seconds(plan(layers), m, here, SHIPPED, depth=depth, rows=rows + 1)
    assert wide
    assert wider
    assert one * (1 - 1e-9) <= wide < wider
    if not m.experts:
        assert wide <= rows * one * (1 + 1e-9)


@given(st.floats(0, 1), st.integers(0, 16))
def test_expected_tokens_lie_between_one_and_all(acceptance: float, depth: int) -> None:
    assert 1 <= expected_tokens(acceptance, depth) <= depth + 1 + 1e-6


@given(some_models, layer_counts, st.sampled_from(["host", "card", "operations"]), st.integers(1, 4096))
def test_what_is_not_known_is_none_and_never_an_error(m: ModelInfo, layers: int, missing: str, prompt: int) -> None:
    found = predict(plan(layers), m, machine(**{missing: None}), SHIPPED, prompt=prompt)
    for number in (found.decode_tokens_per_second, found.prefill_tokens_per_second, found.ttft_seconds):
        assert number is None or number > 0


def test_a_model_of_nothing_has_no_speed() -> None:
    empty = info(0, output_bytes=0, kv_heads=(0,) * LAYERS, parameters=None)
    assert predict(plan(11), empty, machine(), SHIPPED) == Prediction()


# The file


def test_every_backend_that_is_built_has_rates_and_every_value_a_word() -> None:
    assert set(SHIPPED.rates) == {"cuda.gpu", "vulkan.gpu", "vulkan.integrated", "cpu.cpu"}
    assert all(0 < each.bandwidth_share <= 1 for each in SHIPPED.rates.values())
    lines = (data_folder() / "profiles" / "speeds" / "priors.toml").read_text("utf-8").split("\n")
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith(("#", "Q")):
            assert lines[number - 1].startswith("#"), f"{line!r} stands without a word"


@pytest.mark.parametrize(
    "text",
    [
        "half_rows = ",
        "[cuda.gpu]\nbandwidth_share = 1.0",
        "half_rows = 40\n[cuda.gpu]\nbandwidth_share = 1.0",
        "half_rows = 40\n[cuda.gpu]\nbandwidth_share = 1.0\nlayer_seconds = 0\nprefill_share = 1",
        "half_rows = 40\n[cuda.gpu]\nbandwidth_share = 1.0\nlayer_seconds = 'much'\nprefill_share = 1",
        "half_rows = 40\n[cuda.gpu]\nbandwidth_share = 1.0\nlayer_seconds = 1\nprefill_share = 1\nwings = 2",
        "half_rows = 40\nshare = 3",
    ],
)
def test_a_bad_file_of_speeds_is_one_error(text: str) -> None:
    with pytest.raises(UsageError, match="the speeds cannot be used"):
        parse_speeds(text)

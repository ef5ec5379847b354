"""The rules of plan/memory.py on small made-up models; tests/engine/test_zoo.py holds them against llama.cpp itself."""

from dataclasses import replace

import pytest

from tests import zoo, zoo_cases
from tokencli.core import Draft, LargeTensor, Model, ModelInfo, Plan, Vocabulary
from tokencli.plan import memory

BLOCKS = 4
INFO = ModelInfo(
    architecture="llama",
    quant="Q4_0",
    layers=BLOCKS,
    context_trained=4096,
    embedding_length=64,
    vocabulary=Vocabulary(1000, None, None, None, None, None, None),
    chat_template=None,
    file_bytes=2000,
    weight_bytes=1700,
    block_bytes=(100, 200, 300, 400),
    expert_bytes=(60, 120, 180, 240),
    input_bytes=500,
    output_bytes=200,
    tied=False,
    kv_heads=(2,) * BLOCKS,
    key_lengths=(64,) * BLOCKS,
    value_lengths=(32,) * BLOCKS,
    sliding_layers=(False,) * BLOCKS,
    recurrent_layers=(False,) * BLOCKS,
    recurrent_bytes=(0,) * BLOCKS,
    experts=8,
    experts_used=2,
)
TIED = replace(INFO, tied=True, weight_bytes=1510, output_bytes=510)  # 10 of a norm, 500 of the embeddings' copy
HYBRID = replace(
    INFO,
    architecture="qwen35",
    kv_heads=(0, 0, 2, 2),
    recurrent_layers=(True, True, False, False),
    recurrent_bytes=(10, 20, 0, 0),
)
MODEL = Model("m", "m.gguf", "Q4_0", "llama", 2000, BLOCKS, 4096)
PLAN = Plan(model=MODEL, backend="vulkan", gpu_layers=3, context=1000, threads=1, device="Vulkan0")
KV_OF_BLOCK = 1024 * (2 * 64 + 2 * 32) * 2


@pytest.mark.parametrize(
    ("gpu_layers", "device", "host"),
    [(0, 0, 1700), (1, 200, 1500), (2, 600, 1100), (3, 900, 800), (5, 1200, 500), (99, 1200, 500)],
)
def test_the_output_goes_first_then_the_last_blocks(gpu_layers: int, device: int, host: int) -> None:
    assert memory.device_weights(INFO, gpu_layers) == device
    assert memory.host_weights(INFO, gpu_layers) == host


@pytest.mark.parametrize(("gpu_layers", "device", "host"), [(0, 0, 1510), (1, 510, 1500), (5, 1510, 500)])
def test_a_tied_model_has_a_copy_only_on_a_device(gpu_layers: int, device: int, host: int) -> None:
    assert memory.device_weights(TIED, gpu_layers) == device
    assert memory.host_weights(TIED, gpu_layers) == host


def test_an_unmapped_copy_that_comes_first_is_a_second_one() -> None:
    first = replace(TIED, architecture="gemma3n")
    assert [memory.host_weights(first, 0, mapped=mapped) for mapped in (True, False)] == [1510, 2010]
    assert memory.host_weights(first, 1, mapped=False) == 1500
    assert memory.host_weights(TIED, 0, mapped=False) == 1510


@pytest.mark.parametrize(("experts_of", "device", "host"), [(0, 1200, 500), (1, 1140, 560), (2, 1020, 680), (9, 600, 1100)])
def test_experts_of_the_first_blocks_stay_on_the_host(experts_of: int, device: int, host: int) -> None:
    assert memory.device_weights(INFO, 5, experts_of) == device
    assert memory.host_weights(INFO, 5, experts_of) == host


def test_experts_of_blocks_that_are_on_the_host_anyway_change_nothing() -> None:
    assert memory.device_weights(INFO, 3, 2) == memory.device_weights(INFO, 3)
    assert memory.device_weights(INFO, 3, 3) == memory.device_weights(INFO, 3) - 180


LARGE = (
    LargeTensor("output.weight", None, 150, 1000, False),
    LargeTensor("blk.2.ffn_up_exps.weight", 2, 90, 500, True),
    LargeTensor("blk.3.attn_q.weight", 3, 50, 400, False),
)


@pytest.mark.parametrize(("limit", "kept"), [(None, 0), (1000, 0), (999, 150), (499, 240), (399, 290)])
def test_what_a_device_refuses_stays_on_the_host(limit: int | None, kept: int) -> None:
    seen = memory.seen_by(replace(INFO, large_tensors=LARGE), limit)
    assert memory.device_weights(seen, 5) == memory.device_weights(INFO, 5) - kept
    assert memory.host_weights(seen, 5) == memory.host_weights(INFO, 5) + kept
    assert memory.host_weights(seen, 0) == memory.host_weights(INFO, 0)
    experts = 90 if kept >= 240 else 0  # kept back once, by whichever reason
    assert memory.device_weights(seen, 5, 9) == memory.device_weights(INFO, 5, 9) - (kept - experts)


def test_the_copy_of_a_tied_model_is_not_made_where_it_is_refused() -> None:
    seen = memory.seen_by(replace(TIED, large_tensors=(LargeTensor("token_embd.weight", None, 500, 1000, False),)), 999)
    assert memory.device_weights(seen, 5) == 1010
    assert [memory.host_weights(seen, layers) for layers in (0, 5)] == [1510, 500]


def test_only_what_would_be_on_the_device_is_left_out_of_it() -> None:
    info = replace(INFO, large_tensors=LARGE)
    assert memory.left_out(PLAN, info, None) == ([], 0)
    assert memory.left_out(replace(PLAN, gpu_layers=1), info, 399) == (["output.weight"], 150)
    assert memory.left_out(replace(PLAN, gpu_layers=5), info, 399)[1] == 290
    assert memory.left_out(replace(PLAN, gpu_layers=5, cpu_moe_layers=3), info, 399)[1] == 200


def test_a_large_tensor_is_one_whose_trial_needs_more_than_every_device_has() -> None:
    (output,) = zoo_cases.info("qwen2.5-7b").large_tensors  # its blocks' widest is 18,944 rows: 37 MiB
    assert (output.name, output.block, output.reach) == ("output.weight", None, output.bytes)
    (copy,) = zoo_cases.info("llama-3.2-1b").large_tensors
    assert (copy.name, copy.block, copy.reach) == ("token_embd.weight", None, 4 * 128_256 * 512)
    experts = [each for each in zoo_cases.info("gpt-oss-20b").large_tensors if each.expert]
    assert len(experts) == 3 * 24
    assert {each.reach for each in experts} == {32 * 2880 * 2880 // 32 * 17}  # MXFP4: 17 bytes for 32 numbers
    assert zoo_cases.info("smollm2-135m").large_tensors == ()


def test_draft_heads_count_as_layers_but_are_not_loaded() -> None:
    heads = replace(INFO, draft_heads=1)
    assert memory.device_weights(heads, 2) == INFO.output_bytes
    assert memory.device_weights(heads, 5) == INFO.output_bytes + 600
    assert memory.host_weights(heads, 0) == 1300
    assert sum(memory.host_weights(heads, layers) + memory.device_weights(heads, layers) for layers in range(6)) == 6 * 1300


def test_a_plan_by_device() -> None:
    host, device = memory.placed(PLAN, INFO, "integrated")
    assert (host.id, host.kind, device.id, device.kind) == ("CPU", "cpu", "Vulkan0", "integrated")
    assert (host.weights, device.weights) == (800, 900)
    assert (host.kv, device.kv) == (2 * KV_OF_BLOCK, 2 * KV_OF_BLOCK)
    assert (host.output, device.output) == (4000, 0)
    assert (host.compute, device.compute) == (0, 0)


def test_without_a_device_all_is_on_the_host() -> None:
    (host,) = memory.placed(replace(PLAN, device=None), INFO, repacked=7)
    assert (host.weights, host.kv) == (1707, 4 * KV_OF_BLOCK)


def test_logits_of_every_drafted_token_are_kept() -> None:
    host, _ = memory.placed(replace(PLAN, draft=Draft("ngram", None, None, 8, 0.0)), INFO)
    assert host.output == 9 * 4000


def test_earlier_states_are_kept_where_llama_cpp_can() -> None:
    drafting = replace(PLAN, draft=Draft("ngram", None, None, 3, 0.0), gpu_layers=4)
    host, device = memory.placed(drafting, HYBRID)
    assert (host.recurrent, device.recurrent) == (4 * 10, 4 * 20)
    host, device = memory.placed(drafting, replace(HYBRID, architecture="qwen3next"))
    assert (host.recurrent, device.recurrent) == (10, 20)
    assert memory.snapshots(INFO, drafting) == 0


def test_a_window_is_cached_with_its_micro_batch_in_whole_pads() -> None:
    slides = replace(INFO, sliding_layers=(True, False, True, False), sliding_window=300)
    per_cell = (2 * 64 + 2 * 32) * 2
    assert memory.kv_bytes(slides, 0, 4000, "f16", 512) == 1024 * per_cell  # 812 padded
    assert memory.kv_bytes(slides, 1, 4000, "f16", 512) == 4096 * per_cell
    assert memory.kv_bytes(slides, 0, 200, "f16", 512) == 256 * per_cell
    host, _ = memory.placed(replace(PLAN, context=4000, batch=64, gpu_layers=0), slides)  # a micro-batch of 64 at most
    assert host.kv == 2 * (512 + 4096) * per_cell


@pytest.mark.parametrize(("kv_type", "per_number"), [("f16", 2), ("q8_0", 34 / 32), ("q4_0", 18 / 32)])
def test_types_of_the_cache(kv_type: str, per_number: float) -> None:
    assert memory.kv_bytes(INFO, 0, 1024, kv_type, 512) == 1024 * 192 * per_number


def test_without_flash_attention_values_are_as_wide_as_the_widest() -> None:
    uneven = replace(INFO, value_lengths=(32, 96, 32, 32))
    assert memory.kv_bytes(uneven, 0, 256, "f16", 512, "off") == 256 * (2 * 64 + 2 * 96) * 2
    assert memory.kv_bytes(uneven, 0, 256, "f16", 512, "auto") == 256 * (2 * 64 + 2 * 32) * 2
    assert memory.kv_bytes(replace(uneven, kv_heads=(0, 2, 2, 2)), 0, 256, "f16", 512, "off") == 0
    compressed = replace(INFO, value_lengths=(0,) * BLOCKS)
    assert memory.kv_bytes(compressed, 0, 256, "f16", 512, "off") == 256 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("kv_type", "flash_attention", "head", "says"),
    [
        ("f16", "off", 64, None),
        ("q8_0", "auto", 64, None),
        ("q8_0", "off", 64, "a KV cache of type q8_0 needs flash attention"),
        ("q4_0", "on", 80, "a KV cache of type q4_0 needs heads of a multiple of 32, not 80"),
    ],
)
def test_what_llama_cpp_would_refuse(kv_type: str, flash_attention: str, head: int, says: str | None) -> None:
    assert memory.refusal(replace(INFO, key_lengths=(head,) * BLOCKS), kv_type, flash_attention) == says


def test_a_cache_that_is_never_made_is_never_refused() -> None:
    assert memory.refusal(replace(INFO, kv_heads=(0,) * BLOCKS), "q8_0", "off") is None


def test_what_is_mapped_reaches_from_the_first_host_tensor_to_the_last() -> None:
    """The output comes first in the file: it is mapped only where it is used from there."""
    header, info = zoo.parsed("llama-3.1-8b"), zoo_cases.info("llama-3.1-8b")
    padding = 32 * len(header.tensors)
    assert memory.mapped_bytes(header, 0) == pytest.approx(info.weight_bytes, abs=padding)
    assert memory.mapped_bytes(header, 33) == pytest.approx(info.input_bytes, abs=padding)
    assert memory.mapped_bytes(header, 1) == pytest.approx(memory.host_weights(info, 1), abs=padding)


def test_what_is_mapped_spans_what_is_on_the_device() -> None:
    header, info = zoo.parsed("qwen3-30b-a3b"), zoo_cases.info("qwen3-30b-a3b")
    assert memory.mapped_bytes(header, 49, 48) > memory.host_weights(info, 49, 48)


def test_parts_are_mapped_one_by_one() -> None:
    header = zoo.parsed("smollm2-135m")
    cut = next(tensor.offset for tensor in header.tensors if tensor.name.startswith("blk.20."))
    moved = (replace(tensor, offset=tensor.offset - (cut if tensor.offset >= cut else 0)) for tensor in header.tensors)
    parts = replace(header, tensors=tuple(moved))
    assert memory.mapped_bytes(parts, 0) == pytest.approx(memory.mapped_bytes(header, 0), abs=64)
    assert memory.mapped_bytes(parts, 5) == memory.mapped_bytes(header, 5)  # some blocks of either part


def test_what_an_x86_processor_repacks() -> None:
    header, info = zoo.parsed("gemma-3-12b"), zoo_cases.info("gemma-3-12b")
    of_type = sum(tensor.bytes for tensor in header.tensors if tensor.type == "Q4_K")
    assert memory.repacked_bytes(header, info) == of_type  # the embeddings, which are not multiplied but as output, are Q6_K
    assert memory.repacked_bytes(zoo.parsed("bonsai-27b"), zoo_cases.info("bonsai-27b")) == 0

"""What memory estimates got wrong for people, each as a row that ours must get right. Ids and figures: field reports, A2-*.

Those that need what this program does not do, or that another test shows, are listed in README.md beside this file.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import zoo, zoo_cases, zoo_shapes
from tests.field.test_loads import info as of_log
from tests.field.test_loads import kv, no_blocks, state
from tests.zoo_measure import Case
from tests.zoo_models import ZooModel, config, heads_of
from tokencli.core import Draft, ModelInfo, Plan
from tokencli.engine.log import device_bytes
from tokencli.plan import memory
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header

MIB, GIB = 1 << 20, 1 << 30


def made(model: ZooModel) -> ModelInfo:
    part = zoo.of(model, "made")
    return model_info(parse_header(part.data, part.file_bytes, "made"))


def kv_of(model: ModelInfo, context: int, kv_type: str = "f16") -> int:
    return memory.device_kv(model, model.layers + 1, context, kv_type, 512)


def plan(model: str, **settings: object) -> Plan:
    case = Case("", 4096, "Vulkan0", zoo_cases.info(model).layers + 1)
    return replace(zoo_cases.plan(model, case), **settings)


GEMMA_3_27B = ZooModel(
    "gemma3",
    zoo_shapes.gemma3,
    config(62, 131_072, 262_144, 5376, 21_504, 32, 16, attention__sliding_window=1024) | heads_of(128),
    tied=True,
)
GEMMA_4_E2B = ZooModel(  # the sizes of its log (C-28): 1540 MiB of per-layer embeddings, 264 of token embeddings, 1217.88 else
    "gemma4",
    lambda _m: iter([("per_layer_token_embd.weight", (8960, 262_144)), ("blk.0.some.weight", (1024, 1_813_968))]),
    config(35, 131_072, 262_144, 1536, 6144, 8, 1, attention__sliding_window=512)
    | {"attention.sliding_window_pattern": [1, 1, 1, 1, 0] * 7, "attention.shared_kv_layers": 20}
    | heads_of(512)
    | {"attention.key_length_swa": 256, "attention.value_length_swa": 256},
    tied=True,
    quant="Q5_K_S",
)
MLA = heads_of(512) | {"attention.key_length": 576, "attention.key_length_mla": 192, "attention.value_length_mla": 128}


def windows_are_not_priced_at_the_whole_context() -> None:
    """A2-01: 15 GB predicted for 1.2 GiB."""
    assert kv("gemma 4 12B", 65_536, slides=False) == 1024 * MIB
    assert kv("gemma 4 12B", 65_536) < 1.5 * GIB
    everywhere = replace(of_log("gemma 4 12B"), sliding_window=None)
    assert kv_of(everywhere, 65_536) > 15 * GIB


def windows_of_a_27b() -> None:
    """A2-02: 139 GB predicted at 128,000 tokens where 85,000 took 32."""
    model = made(GEMMA_3_27B)
    assert memory.device_weights(model, 63) + kv_of(model, 85_000, "q8_0") < 32e9
    assert max(memory.kv_bytes(model, block, 128_000, "q8_0", 512) for block in range(62)) < 0.6 * GIB


def a_mixture_needs_room_for_all_its_experts() -> None:
    """A2-11: memory from the active parameters."""
    model = zoo_cases.info("qwen3-30b-a3b")
    assert memory.device_weights(model, 49) > 0.98 * (model.weight_bytes - model.input_bytes)
    assert model.active_bytes < 0.15 * model.weight_bytes


def a_window_has_its_small_cache() -> None:
    """A2-14, A2-15: 160 MiB of window caches for 60; twenty blocks of two heads, at 4,096 tokens."""
    one_block = replace(
        of_log("gemma 2 2B"), kv_heads=(2,) * 26, key_lengths=(256,) * 26, value_lengths=(256,) * 26, sliding_window=1024
    )
    assert 20 * memory.kv_bytes(one_block, 0, 4096, "f16", 512) == 60 * MIB
    assert 20 * memory.kv_bytes(replace(one_block, sliding_window=None), 0, 4096, "f16", 512) == 160 * MIB


def state_is_kept_for_one_sequence_and_each_drafted_token() -> None:
    """A2-16: 1795.50 MiB where 149.62 would do."""
    (_, device) = memory.placed(plan("qwen3.5-class-27b"), zoo_cases.info("qwen3.5-class-27b"))
    assert device.recurrent == pytest.approx(149.62 * MIB, abs=0.01 * MIB)
    drafting = plan("qwen3.5-class-27b", draft=Draft("ngram", None, None, 2, 0.0))
    (_, device) = memory.placed(drafting, zoo_cases.info("qwen3.5-class-27b"))
    assert device.recurrent == pytest.approx(3 * 149.62 * MIB, abs=0.03 * MIB)


def a_draft_has_a_cache_of_its_own() -> None:
    """A2-08, A2-18: a second context costs weights and KV again."""
    draft = zoo_cases.info("llama-3.2-1b")
    (_, device) = memory.placed(plan("llama-3.2-1b"), draft)
    assert device.kv == 128 * MIB
    assert device.weights == draft.weight_bytes  # tied: the embeddings' copy instead of the embeddings


def the_fork_prices_windows_at_the_whole_context() -> None:
    """A2-23: gpt-oss at 131,072 tokens with all experts on the host: 1242 + 3090 MiB fit into 7672 beside 457 of compute."""
    wanted = plan("gpt-oss-20b", context=131_072, cpu_moe_layers=99)
    (_, device) = memory.placed(wanted, zoo_cases.info("gpt-oss-20b"))
    assert device.weights + device.kv == pytest.approx((1242.03 + 3072 + 18) * MIB, abs=0.03 * MIB)


def embeddings_stay_on_the_host_and_a_tied_model_has_a_copy() -> None:
    """A2-24, A2-32: 3021.88 MiB in the file, 1804.00 on the host, 1481.89 on the device."""
    model = made(GEMMA_4_E2B)
    assert model.weight_bytes == pytest.approx(3021.88 * MIB, abs=0.02 * MIB)
    assert memory.host_weights(model, 36) == pytest.approx(1804.00 * MIB, abs=0.02 * MIB)
    assert memory.device_weights(model, 36) == pytest.approx(1481.89 * MIB, abs=0.02 * MIB)


def the_output_counts_as_the_first_layer() -> None:
    """A2-25: -ngl 1 is the output alone, 80.60 MiB of OLMoE."""
    assert memory.device_weights(of_log("olmoe 7B"), 1) == pytest.approx(80.60 * MIB, abs=0.01 * MIB)
    model = zoo_cases.info("llama-3.1-8b")
    assert memory.device_weights(model, 2) == model.output_bytes + model.block_bytes[-1]


def logits_are_host_memory() -> None:
    """A2-26: 700 MiB too many on the device for a large vocabulary."""
    host, device = memory.placed(plan("qwen3.5-class-9b"), zoo_cases.info("qwen3.5-class-9b"))
    assert (device.output, host.output) == (0, 248_320 * 4)


def each_kind_of_cache_has_its_own_formula() -> None:
    """A2-28: GiB of KV cache at the trained context, where one formula for all was wrong by -81 % to +682 %."""
    assert 10.41 <= kv_of(made(GEMMA_3_27B), 131_072) / GIB <= 10.41 * 1.03  # theirs has no micro-batch in the window
    assert kv("qwen3.5-class-27b", 262_144) == 16 * GIB
    small = ZooModel("qwen3", no_blocks, config(28, 40_960, 151_936, 1024, 3072, 16, 8) | heads_of(128), tied=True)
    assert kv_of(made(small), 40_960) / GIB == pytest.approx(4.38, abs=0.01)
    v3 = ZooModel("deepseek2", no_blocks, config(61, 163_840, 129_280, 7168, 18_432, 128, 1) | MLA)
    assert kv_of(made(v3), 163_840) / GIB == pytest.approx(10.72, abs=0.01)


def a_log_is_read_once_per_buffer() -> None:
    """A2-33: a compute buffer that is printed again is not a second one, and a recurrent state has lines of its own."""
    lines = [
        "llama_memory_recurrent:      CUDA0 RS buffer size =   149.62 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   520.06 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   520.06 MiB",
    ]
    (device,) = device_bytes(lines, {"CUDA0": "gpu"})
    assert device.compute / MIB == pytest.approx(520.06, abs=0.01)
    assert device.recurrent / MIB == pytest.approx(149.62, abs=0.01)


def a_hybrid_has_caches_in_a_quarter_of_its_blocks() -> None:
    """A2-34: about 75 GB shown for 47: 16,384 MiB of KV and 598.50 of state for four sequences."""
    assert kv("qwen3.5-class-27b", 262_144) == 16_384 * MIB
    assert state("qwen3.5-class-27b", 4) == pytest.approx(598.50 * MIB, abs=0.01 * MIB)


def experts_leave_before_whole_layers() -> None:
    """A2-36: the same room is made, and the cache stays on the device."""
    model = zoo_cases.info("qwen3-30b-a3b")
    _, whole = memory.placed(plan("qwen3-30b-a3b"), model)
    host, spilled = memory.placed(plan("qwen3-30b-a3b", cpu_moe_layers=24), model)
    assert whole.weights - spilled.weights == sum(model.expert_bytes[:24])
    assert (spilled.kv, host.kv) == (whole.kv, 0)


SHOWN: dict[str, Callable[[], None]] = {
    "A2-01": windows_are_not_priced_at_the_whole_context,
    "A2-02": windows_of_a_27b,
    "A2-08": a_draft_has_a_cache_of_its_own,
    "A2-11": a_mixture_needs_room_for_all_its_experts,
    "A2-14": a_window_has_its_small_cache,
    "A2-15": a_window_has_its_small_cache,
    "A2-16": state_is_kept_for_one_sequence_and_each_drafted_token,
    "A2-18": a_draft_has_a_cache_of_its_own,
    "A2-23": the_fork_prices_windows_at_the_whole_context,
    "A2-24": embeddings_stay_on_the_host_and_a_tied_model_has_a_copy,
    "A2-25": the_output_counts_as_the_first_layer,
    "A2-26": logits_are_host_memory,
    "A2-28": each_kind_of_cache_has_its_own_formula,
    "A2-32": embeddings_stay_on_the_host_and_a_tied_model_has_a_copy,
    "A2-33": a_log_is_read_once_per_buffer,
    "A2-34": a_hybrid_has_caches_in_a_quarter_of_its_blocks,
    "A2-36": experts_leave_before_whole_layers,
}


@pytest.mark.parametrize("report", SHOWN)
def test_a_reported_estimate_is_right_here(report: str) -> None:
    SHOWN[report]()


def test_attention_without_flash_grows_with_the_context(tmp_path: Path) -> None:
    """A2-19: context x heads x micro-batch x 4 bytes; llama.cpp's dry run is asked, so it is known."""
    cases = {
        str((context, flash)): ("deepseek-v2-lite", Case("", context, flash_attention=flash))
        for context in (4096, 16_384)
        for flash in ("on", "off")
    }
    found = zoo_cases.measured(cases, tmp_path)
    compute = {key: each["compute", "CPU"] for key, each in found.items() if not isinstance(each, str)}
    assert compute["(16384, 'off')"] - compute["(4096, 'off')"] >= 12_288 * 16 * 512 * 4
    assert compute["(16384, 'on')"] - compute["(4096, 'on')"] < 64 * MIB


def test_readme_tells_of_the_others() -> None:
    """Every report on memory is shown here or named in the README."""
    known = {f"A2-{number:02d}" for number in (*range(1, 3), *range(5, 9), 11, *range(13, 20), *range(23, 30), *range(31, 37))}
    readme = (Path(__file__).parent / "README.md").read_text("utf-8")
    assert {report for report in known if report not in SHOWN and report not in readme} == set()

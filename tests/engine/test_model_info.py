"""What the header says of a model, against what llama.cpp then reserves: real loads of small models, and for the rules of each
architecture a model that is nothing but metadata."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import LAVAPIPE, load, plan_for
from tests.engine.memory_of_metadata import CONTEXT, SEQUENCES, UBATCH
from tests.unit.gguf_bytes import gguf
from tokencli.core import Loaded, Model, ModelInfo
from tokencli.engine.client import Engine
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header, read_header

MIB = 1 << 20
LOG_PRECISION = 0.0051  # llama.cpp prints hundredths of a MiB


def padded(cells: int) -> int:
    return -(-cells // 256) * 256


def kv_bytes(info: ModelInfo, context: int, ubatch: int, sequences: int = 1) -> tuple[int, int]:
    """Of an f16 cache: the blocks that keep the whole context, and those with a sliding window (llama-kv-cache-iswa.cpp)."""
    cells = padded(context)
    in_window = padded(min(cells, (info.sliding_window or 0) * sequences + ubatch))
    sizes = [0, 0]
    for slides, keys, values in zip(info.sliding_layers, info.key_widths, info.value_widths, strict=True):
        sizes[slides] += (in_window if slides else cells) * (keys + values) * 2
    return sizes[False], sizes[True]


# Real loads


def loaded(model: Model, **changes: object) -> Loaded:
    with Engine() as engine:
        return load(engine, plan_for(model, **changes))


def mib_in_all(loaded: Loaded, term: str) -> float:
    return sum(getattr(device, term) for device in loaded.devices) / MIB


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("llama", {"layers": 7, "tied": True, "weight_type": "F16"}),
        ("sliding", {"layers": 6, "window": 512}),
        ("hybrid", {"layers": 24, "embedding": 256}),
        ("experts", {"vocab_size": 152_064}),
    ],
)
@pytest.mark.parametrize("context", [1000, 8192])
def test_a_tiny_model_takes_what_its_header_says(tiny: Callable[..., Model], kind: str, options: dict, context: int) -> None:
    model = tiny(kind, **options)
    info = model_info(read_header(Path(model.file)))
    there = loaded(model, context=context, ubatch=256)
    assert mib_in_all(there, "kv") == pytest.approx(sum(kv_bytes(info, context, 256)) / MIB, abs=2 * LOG_PRECISION)
    assert mib_in_all(there, "recurrent") == pytest.approx(sum(info.recurrent_bytes) / MIB, abs=LOG_PRECISION)
    assert there.layers == info.offloadable_layers
    assert mib_in_all(there, "weights") == pytest.approx(info.weight_bytes / MIB, abs=0.02)  # with padding between tensors


def test_the_tiny_kinds_are_told_apart(tiny: Callable[..., Model]) -> None:
    infos = {kind: model_info(read_header(Path(tiny(kind).file))) for kind in ("llama", "sliding", "hybrid", "experts")}
    assert [kind for kind, info in infos.items() if info.is_recurrent] == ["hybrid"]
    assert [kind for kind, info in infos.items() if info.sliding_window] == ["sliding"]
    assert (infos["experts"].experts, infos["experts"].experts_share) == (4, 0.5)
    assert sum(infos["experts"].expert_bytes) > 0


def test_smollm2_takes_what_its_header_says(smollm2: Model) -> None:
    info = model_info(read_header(Path(smollm2.file)))
    there = loaded(smollm2)
    assert (info.layers, info.quant, info.tied, info.vocabulary.size) == (30, "Q4_1", True, 49_152)
    assert info.context_trained == 8192
    assert mib_in_all(there, "kv") == pytest.approx(45)  # 2,048 cells x 30 blocks x 3 heads x (64 + 64) x 2 bytes
    assert sum(kv_bytes(info, 2048, 512)) == 45 * MIB
    assert mib_in_all(there, "weights") == pytest.approx(info.weight_bytes / MIB, abs=0.02)


@pytest.mark.vulkan
@pytest.mark.parametrize("gpu_layers", [1, 3])
@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("sliding", False), ("hybrid", True), ("experts", False)])
def test_weights_go_to_a_device_by_block(
    tiny: Callable[..., Model], lavapipe: str, kind: str, tied: bool, gpu_layers: int
) -> None:
    """The output layer first, a copy of the embeddings if tied, then the last blocks; the input stays on the host."""
    model = tiny(kind, tied=tied, vocab_size=4096, embedding=128)
    info = model_info(read_header(Path(model.file)))
    with Engine(environment=LAVAPIPE) as engine:
        there = load(engine, plan_for(model, backend="vulkan", device=lavapipe, gpu_layers=gpu_layers))
    (device,) = (each for each in there.devices if each.id == lavapipe)
    expected = info.output_bytes + sum(info.block_bytes[info.offloadable_layers - gpu_layers :])
    assert device.weights / MIB == pytest.approx(expected / MIB, abs=LOG_PRECISION)


# The rules of each architecture

Metadata = dict[str, object]


def numbers(*values: int) -> bytes:
    """An array of u32, the type that llama.cpp asks for."""
    return struct.pack(f"<IIQ{len(values)}I", 9, 4, len(values), *values)


LAYERS = 12
COMMON: Metadata = {
    "block_count": LAYERS,
    "vocab_size": 128,
    "context_length": 256,
    "embedding_length": 256,
    "feed_forward_length": 384,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "leading_dense_block_count": 1,
    "interleave_moe_layer_step": 2,
    "rope.dimension_sections": numbers(16, 16, 16, 16),
}
EXPERTS: Metadata = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 384,
    "expert_shared_feed_forward_length": 192,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_group_scale": 1.0,
    "experts_per_group": 1,
}
WINDOW: Metadata = {"attention.sliding_window": 32}
SLIDING = "attention.sliding_window_pattern"
STATE: Metadata = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 256,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
}
TWICE_THE_EMBEDDING = STATE | {"ssm.inner_size": 512}  # what Mamba's graph asks for
KV_HEADS = "attention.head_count_kv"
EVERY_THIRD = numbers(*[0 if block % 3 else 2 for block in range(LAYERS)])
MLA: Metadata = {
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "attention.q_lora_rank": 512,
    "attention.kv_lora_rank": 512,
    "rope.dimension_count": 64,
}
RWKV: Metadata = {
    "wkv.head_size": 64,
    "time_mix_extra_dim": 64,
    "time_decay_extra_dim": 128,
    **{f"attention.{which}_lora_rank": 64 for which in ("decay", "iclr", "value_residual_mix", "gate")},
}
HEAD_128: Metadata = {"attention.key_length": 128, "attention.value_length": 128}
GEMMA_4: Metadata = {
    **WINDOW,
    SLIDING: numbers(1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0),
    KV_HEADS: numbers(2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2, 1),
    "attention.shared_kv_layers": 6,
    "embedding_length_per_layer_input": 64,
    **HEAD_128,
    "attention.key_length_swa": 64,
    "attention.value_length_swa": 64,
    "rope.dimension_count": 128,
    "rope.dimension_count_swa": 64,
}

CASES: dict[str, tuple[str, Metadata]] = {
    "llama": ("llama", {}),
    "llama without KV heads": ("llama", {KV_HEADS: 4}),
    "llama with an unused window": ("llama", WINDOW),
    "qwen2": ("qwen2", WINDOW),
    "qwen3 with longer heads": ("qwen3", HEAD_128),
    "qwen3moe": ("qwen3moe", EXPERTS),
    "phi3": ("phi3", WINDOW),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3", WINDOW),
    "gemma3 with a pattern": ("gemma3", WINDOW | {SLIDING: 4}),
    "gemma3 with a list": ("gemma3", WINDOW | {SLIDING: numbers(*[1] * 11, 0)}),
    "gemma3 without a window": ("gemma3", {}),
    "gemma3n": ("gemma3n", WINDOW | {"block_count": 30}),
    "gemma4": ("gemma4", GEMMA_4),
    "gpt-oss": ("gpt-oss", WINDOW | EXPERTS),
    "llama4": ("llama4", EXPERTS),
    "cohere2": ("cohere2", WINDOW),
    "cohere2moe": ("cohere2moe", WINDOW | EXPERTS),
    "exaone4 1.2B": ("exaone4", WINDOW),
    "exaone4 32B": ("exaone4", WINDOW | {"block_count": 64}),
    "olmo2": ("olmo2", WINDOW),
    "smallthinker": ("smallthinker", WINDOW | EXPERTS),
    "plamo3": ("plamo3", WINDOW),
    "step35": ("step35", WINDOW | EXPERTS | {SLIDING: numbers(*[1, 0] * 6)}),
    "glm4moe with a draft head": ("glm4moe", EXPERTS | {"nextn_predict_layers": 1}),
    "nanbeige": ("nanbeige", {"num_loops": 2}),
    "deepseek2": ("deepseek2", MLA | EXPERTS | {KV_HEADS: 1}),
    "deepseek2 before MLA": (
        "deepseek2",
        EXPERTS
        | {key: MLA[key] for key in ("attention.q_lora_rank", "attention.kv_lora_rank", "rope.dimension_count")}
        | {KV_HEADS: 4, "attention.key_length": 192, "attention.value_length": 128},
    ),
    "qwen3next": ("qwen3next", STATE | EXPERTS),
    "qwen35": ("qwen35", STATE),
    "qwen35 every third": ("qwen35", STATE | {"full_attention_interval": 3}),
    "qwen35 listed": ("qwen35", STATE | {"attention.recurrent_layers": numbers(*[1, 0, 0] * 4)}),
    "qwen35moe with a draft head": ("qwen35moe", STATE | EXPERTS | {"nextn_predict_layers": 1, "block_count": 13}),
    "lfm2": ("lfm2", {KV_HEADS: EVERY_THIRD, "shortconv.l_cache": 65}),
    "lfm2 with a window": ("lfm2", WINDOW | {KV_HEADS: EVERY_THIRD, "shortconv.l_cache": 65}),
    "jamba": ("jamba", TWICE_THE_EMBEDDING | EXPERTS | {KV_HEADS: EVERY_THIRD}),
    "granitehybrid": ("granitehybrid", TWICE_THE_EMBEDDING | {KV_HEADS: EVERY_THIRD}),
    "falcon-h1": ("falcon-h1", STATE),
    "nemotron_h": ("nemotron_h", STATE | {KV_HEADS: EVERY_THIRD, "feed_forward_length": numbers(*[0, 0, 384] * 4)}),
    "plamo2": (
        "plamo2",
        STATE | HEAD_128 | {KV_HEADS: numbers(*[0, 2] * 6), "attention.head_count": numbers(*[0, 4] * 6), "ssm.group_count": 0},
    ),
    "kimi-linear": (
        "kimi-linear",
        MLA | EXPERTS | {KV_HEADS: numbers(*[1 if block % 4 == 3 else 0 for block in range(LAYERS)])}
        | {"kda.head_dim": 128, "ssm.conv_kernel": 4},
    ),
    "minimax-01": ("minimax-01", EXPERTS),
    "mamba": ("mamba", TWICE_THE_EMBEDDING | {"attention.head_count": 0, KV_HEADS: 0}),
    "mamba2": ("mamba2", TWICE_THE_EMBEDDING | {"attention.head_count": 0, KV_HEADS: 0}),
    "rwkv6": ("rwkv6", RWKV | {KV_HEADS: 4}),
    "rwkv7": ("rwkv7", RWKV),
    "arwkv7": ("arwkv7", RWKV | {"token_shift_count": 1}),
}  # fmt: skip


def file_of(case: str) -> bytes:
    architecture, own = CASES[case]
    metadata = {f"{architecture}.{key}": value for key, value in (COMMON | own).items()}
    tokens = [f"t{number}" for number in range(128)]
    vocabulary = {"model": "test", "tokens": tokens, "scores": struct.pack("<IIQ128f", 9, 6, 128, *[0.0] * 128)}
    general = {"general.architecture": architecture} | {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    return gguf(general | metadata, [("token_embd.weight", (256, 128), 0)])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What llama.cpp says of every case."""
    folder = tmp_path_factory.mktemp("metadata")
    files = [folder / f"{number}.gguf" for number in range(len(CASES))]
    for file, case in zip(files, CASES, strict=True):
        file.write_bytes(file_of(case))
    command = [sys.executable, "-m", "tests.engine.memory_of_metadata", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"GGML_NO_BACKTRACE": "1"}, timeout=120)
    return dict(zip(CASES, [json.loads(line) for line in done.stdout.splitlines()], strict=True))


@pytest.mark.parametrize("case", CASES)
def test_an_architecture_keeps_what_its_metadata_says(measured: dict[str, dict], case: str) -> None:
    theirs = measured[case]
    assert "error" not in theirs, theirs
    raw = file_of(case)
    info = model_info(parse_header(raw, len(raw), case))
    whole, in_window = kv_bytes(info, CONTEXT, UBATCH, SEQUENCES)
    expected = [size / MIB for size in (whole, in_window) if size]
    assert [keys + values for _, _, keys, values in theirs["kv"]] == pytest.approx(expected, abs=2 * LOG_PRECISION)
    assert sum(blocks for _, blocks, _, _ in theirs["kv"]) == sum(1 for heads in info.kv_heads if heads)
    assert theirs["state"] == pytest.approx(SEQUENCES * sum(info.recurrent_bytes) / MIB, abs=LOG_PRECISION)


@pytest.mark.parametrize(("asked", "used"), [("auto", "on"), ("on", None), ("off", None)])
def test_a_load_tells_whether_flash_attention_is_used(tiny: Callable[..., Model], asked: str, used: str | None) -> None:
    """Where it is not left to llama.cpp, it is as asked for."""
    assert loaded(tiny(), flash_attention=asked).flash_attention == used

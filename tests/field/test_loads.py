"""What published load logs say of weights, KV cache, recurrent state and output, reproduced from public hyperparameters.

The rows are those of loads.md (see README.md beside this file for those that do not say enough). Logs of several slots or of
llama.cpp before it offloaded the output first are reproduced with what they had; compute buffers have no formula here.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests import zoo, zoo_shapes
from tests.zoo_models import MODELS, Metadata, ZooModel, config, heads_of
from tests.zoo_shapes import Tensors
from tokencli.core import ModelInfo
from tokencli.header import Header
from tokencli.plan import memory
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header

MIB = 1 << 20
Rows = Iterator[tuple[str, float, float]]  # what, our bytes, their MiB


def no_blocks(_metadata: Metadata) -> Tensors:
    """For rows that need no weights but the embeddings'."""
    yield from ()


@functools.cache
def header(name: str) -> Header:
    model = MODELS.get(name) or OTHERS[name]
    part = zoo.of(model, name)
    return parse_header(part.data, part.file_bytes, name)


def info(name: str) -> ModelInfo:
    return model_info(header(name))


_HYBRID = {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "ssm.inner_size": 4096, "ssm.time_step_rank": 32}
OTHERS = {
    "mistral 7B Q4_0": ZooModel("llama", zoo_shapes.llama, config(32, 32_768, 32_000, 4096, 14_336, 32, 8), quant="Q4_0"),
    "mistral 7B Q5_K_M": ZooModel("llama", zoo_shapes.llama, config(32, 32_768, 32_000, 4096, 14_336, 32, 8), quant="Q5_K_M"),
    "qwen2.5 14B": ZooModel("qwen2", zoo_shapes.qwen2, config(48, 32_768, 152_064, 5120, 13_824, 40, 8)),
    "qwen2.5 3B": ZooModel("qwen2", zoo_shapes.qwen2, config(36, 32_768, 151_936, 2048, 11_008, 16, 2), tied=True),
    "gemma 1 7B": ZooModel("gemma", zoo_shapes.llama, config(28, 8192, 256_000, 3072, 24_576, 16, 16) | heads_of(256), tied=True),
    "gemma 2 2B": ZooModel(
        "gemma2",
        zoo_shapes.gemma2,
        config(26, 8192, 256_000, 2304, 9216, 8, 4, attention__sliding_window=4096) | heads_of(256),
        tied=True,
    ),
    # A class of shape: what its log tells of heads; five blocks of six have a window.
    "gemma 4 12B": ZooModel(
        "gemma4",
        no_blocks,
        config(48, 262_144, 262_144, 3840, 15_360, 16, 0, attention__sliding_window=1024)
        | {"attention.head_count_kv": [8, 8, 8, 8, 8, 1] * 8, "attention.sliding_window_pattern": [1, 1, 1, 1, 1, 0] * 8}
        | heads_of(512)
        | {"attention.key_length_swa": 256, "attention.value_length_swa": 256},
        tied=True,
    ),
    "command-r 35B": ZooModel("command-r", no_blocks, config(40, 131_072, 256_000, 8192, 22_528, 64, 64), tied=True),
    "qwen3-next 80B": ZooModel("qwen3next", no_blocks, config(48, 262_144, 151_936, 2048, 5120, 16, 2) | heads_of(256) | _HYBRID),
    "olmoe 7B": ZooModel("olmoe", no_blocks, config(16, 4096, 50_304, 2048, 1024, 16, 16), quant="Q6_K"),
}


def kv(name: str, context: int, kv_type: str = "f16", ubatch: int = 512, *, slides: bool | None = None) -> int:
    """KV bytes of all blocks, or only of those with or without a window."""
    model = info(name)
    chosen = [block for block in range(model.layers) if slides is None or model.sliding_layers[block] == slides]
    return sum(memory.kv_bytes(model, block, context, kv_type, ubatch) for block in chosen)


def state(name: str, copies: int = 1) -> int:
    return memory.device_state(info(name), info(name).layers + 1, copies)


def output(name: str, slots: int = 1) -> int:
    """llama.cpp reserves a row of logits for each slot."""
    return memory.output_bytes(info(name), slots)


def c1() -> Rows:
    """Six blocks were on the GPU: at the time the output came last."""
    model = info("mistral 7B Q4_0")
    yield "KV in all", kv("mistral 7B Q4_0", 2048), 256.00
    yield "KV of six blocks", memory.device_kv(model, 7, 2048, "f16", 512), 48.00
    yield "weights of six blocks", sum(model.block_bytes[26:]), 702.19
    yield "mapped", memory.mapped_bytes(header("mistral 7B Q4_0"), 0), 3917.87


def c2() -> Rows:
    yield "weights on the GPU", memory.device_weights(info("qwen2.5 14B"), 20), 3621.44
    yield "mapped", memory.mapped_bytes(header("qwen2.5 14B"), 20), 4944.60


def c3() -> Rows:
    yield "KV without a window", kv("gpt-oss-20b", 8192, "q8_0", 128, slides=False), 102.00
    yield "KV with a window", kv("gpt-oss-20b", 8192, "q8_0", 128, slides=True), 3.19
    yield "output", output("gpt-oss-20b"), 0.77


def c4() -> Rows:
    """Four slots share the cache: its window is four times as wide, and a micro-batch of 2048 comes on top."""
    yield "KV without a window", kv("gemma 4 12B", 8192, slides=False), 128.00
    yield "KV with a window", kv("gemma 4 12B", 8192, ubatch=3 * 1024 + 2048, slides=True), 1920.00
    yield "output", output("gemma 4 12B", slots=4), 4.00
    yield "mapped", info("gemma 4 12B").input_bytes, 787.50


def c5() -> Rows:
    yield "KV without a window", kv("gemma 2 2B", 8192, slides=False), 416.00
    yield "KV with a window", kv("gemma 2 2B", 8192, ubatch=3 * 4096 + 512, slides=True), 416.00
    yield "output", output("gemma 2 2B", slots=4), 3.91
    yield "mapped", memory.mapped_bytes(header("gemma 2 2B"), 0), 1623.67
    yield "repacked", memory.repacked_bytes(header("gemma 2 2B"), info("gemma 2 2B")), 921.38


def c10() -> Rows:
    yield "KV", kv("gemma 1 7B", 4096), 1792.00
    yield "output", output("gemma 1 7B"), 0.98
    yield "mapped", memory.mapped_bytes(header("gemma 1 7B"), 0), 5077.09


def c11() -> Rows:
    yield "KV", kv("qwen3.5-class-27b", 32_768), 2048.00
    yield "state", state("qwen3.5-class-27b"), 149.62
    yield "output", output("qwen3.5-class-27b"), 0.95
    yield "mapped", memory.mapped_bytes(header("qwen3.5-class-27b"), 66), 682.03


def c14() -> Rows:
    """Four slots, two earlier states kept of each. The draft head's own cache is that of one more block like the others."""
    yield "KV", kv("qwen3.5-class-27b", 8192), 512.00
    yield "KV of the draft head", kv("qwen3.5-class-27b", 8192) / 16, 32.00
    yield "state", state("qwen3.5-class-27b", copies=4 * (1 + 2)), 1795.50
    yield "output", output("qwen3.5-class-27b", slots=4), 3.79
    yield "mapped", memory.host_weights(info("qwen3.5-class-27b"), 66), 682.03


def c15() -> Rows:
    yield "KV", kv("qwen3-next 80B", 131_072), 3072.00
    yield "state", state("qwen3-next 80B", copies=4), 301.50


def c17() -> Rows:
    yield "KV", kv("command-r 35B", 4096), 5120.00
    yield "KV of the last 28 blocks", memory.device_kv(info("command-r 35B"), 29, 4096, "f16", 512), 3584.00
    yield "token embeddings", info("command-r 35B").input_bytes, 1640.62


def c18() -> Rows:
    yield "KV", kv("qwen2.5 3B", 4096), 144.00
    yield "output", output("qwen2.5 3B"), 0.58


def c20() -> Rows:
    yield "KV of 1,024 tokens, f16", kv("bonsai-27b", 1024), 64.00
    yield "KV of 1,024 tokens, q4_0", kv("bonsai-27b", 1024, "q4_0"), 18.00


def c21() -> Rows:
    yield "token embeddings", info("qwen2.5 3B").input_bytes, 243.43


def c22() -> Rows:
    """Five blocks were on the GPU, the output was not."""
    model = info("mistral 7B Q5_K_M")
    yield "KV", kv("mistral 7B Q5_K_M", 512), 64.00
    yield "KV of five blocks", memory.device_kv(model, 6, 512, "f16", 512), 10.00
    yield "weights of five blocks", sum(model.block_bytes[27:]), 755.00
    yield "mapped", memory.mapped_bytes(header("mistral 7B Q5_K_M"), 0), 4892.99


def c27() -> Rows:
    """Report A2-23: windows of 128 cells at a context of 131,072, all experts on the host."""
    yield "weights on the GPU", memory.device_weights(info("gpt-oss-20b"), 25, 24), 1242.03
    yield "mapped", memory.mapped_bytes(header("gpt-oss-20b"), 25, 24), 10_949.33
    yield "KV without a window", kv("gpt-oss-20b", 131_072, slides=False), 3072.00
    yield "KV with a window", kv("gpt-oss-20b", 131_072, slides=True), 18.00
    yield "output", output("gpt-oss-20b"), 0.77


def c29() -> Rows:
    yield "the output layer alone", memory.device_weights(info("olmoe 7B"), 1), 80.60


def c33() -> Rows:
    """The token embeddings of an untied 9B stay on the host."""
    for quant, gib in (("Q8_0", 1.03), ("Q6_K", 0.78)):
        raw = zoo.of(replace(MODELS["qwen3.5-class-9b"], shapes=no_blocks, quant=quant), quant)
        size = model_info(parse_header(raw.data, raw.file_bytes, quant)).input_bytes
        yield f"token embeddings, {quant}", round(size / 1024**3, 2) * MIB, gib  # in GiB, as reported


ROWS: dict[str, Callable[[], Rows]] = {
    "C-1": c1, "C-2": c2, "C-3": c3, "C-4": c4, "C-5": c5, "C-10": c10, "C-11": c11, "C-14": c14, "C-15": c15, "C-17": c17,
    "C-18": c18, "C-20": c20, "C-21": c21, "C-22": c22, "C-27": c27, "C-29": c29, "C-33": c33,
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_a_published_log_is_reproduced(row: str) -> None:
    wrong = [f"{what}: {ours / MIB:.2f}, not {theirs:.2f} MiB" for what, ours, theirs in ROWS[row]() if not same(ours, theirs)]
    assert wrong == []


def same(ours: float, theirs: float) -> bool:
    """Logs have two digits; CUDA pads each tensor to 128 bytes."""
    return abs(ours / MIB - theirs) <= 0.03

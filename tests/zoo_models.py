"""The zoo's models: hyperparameters as their public config files give them, with a plausible quant. Generated shapes, not the
real files: mixes differ between publishers, and where a value is of the class of a model rather than known, it says so.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests import zoo_shapes as shapes
from tests.zoo_shapes import Metadata, Tensors

EPSILON = {"attention.layer_norm_rms_epsilon": 1e-6}


@dataclass(frozen=True)
class ZooModel:
    """`quant` names a mix of zoo.py; `freqs`: length of a tensor of rotation frequencies that belongs to no block."""

    architecture: str
    shapes: Callable[[Metadata], Tensors]
    metadata: Metadata
    tied: bool = False
    quant: str = "Q4_K_M"
    freqs: int = 0
    output_norm: str = "output_norm.weight"


def config(
    layers: int, context: int, vocabulary: int, width: int, inner: int, heads: int, kv_heads: int, **more: object
) -> Metadata:
    """As in a config file; in the names of `more`, __ stands for a dot."""
    own = {key.replace("__", "."): value for key, value in more.items()}
    return {
        "block_count": layers,
        "context_length": context,
        "vocab_size": vocabulary,
        "embedding_length": width,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        **EPSILON,
        **own,
    }


def heads_of(size: int) -> Metadata:
    return {"attention.key_length": size, "attention.value_length": size}


_HYBRID = {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "full_attention_interval": 4,
           "rope.dimension_count": 64}  # fmt: skip
_SECTIONS = {"rope.dimension_sections": [11, 11, 10, 0]}
# The class of the 27B: its state (149.62 MiB) and cache (64 KiB a token) are those of published logs (loads.md, C-11).
_HYBRID_27B = (
    config(64, 262_144, 248_320, 5120, 17_408, 24, 4) | heads_of(256) | _HYBRID | _SECTIONS
    | {"ssm.inner_size": 6144, "ssm.time_step_rank": 48}
)  # fmt: skip
_LFM2_ATTENTION = (2, 5, 8, 10, 12, 14)

MODELS = {
    "llama-3.1-8b": ZooModel("llama", shapes.llama, config(32, 131_072, 128_256, 4096, 14_336, 32, 8), freqs=64),
    "llama-3.2-1b": ZooModel("llama", shapes.llama, config(16, 131_072, 128_256, 2048, 8192, 32, 8), tied=True, freqs=32),
    "qwen2.5-7b": ZooModel("qwen2", shapes.qwen2, config(28, 32_768, 152_064, 3584, 18_944, 28, 4)),
    "qwen3-8b": ZooModel("qwen3", shapes.qwen3, config(36, 40_960, 151_936, 4096, 12_288, 32, 8) | heads_of(128)),
    "qwen3-30b-a3b": ZooModel(
        "qwen3moe",
        shapes.qwen3moe,
        config(48, 40_960, 151_936, 2048, 6144, 32, 4, expert_count=128, expert_used_count=8, expert_feed_forward_length=768)
        | heads_of(128),
    ),
    "gemma-2-9b": ZooModel(
        "gemma2",
        shapes.gemma2,
        config(42, 8192, 256_000, 3584, 14_336, 16, 8, attention__sliding_window=4096) | heads_of(256),
        tied=True,
    ),
    "gemma-3-12b": ZooModel(  # vocabulary as converted files have it; the config says 262,208
        "gemma3",
        shapes.gemma3,
        config(48, 131_072, 262_144, 3840, 15_360, 16, 8, attention__sliding_window=1024) | heads_of(256),
        tied=True,
    ),
    "gemma-3n-e4b": ZooModel(  # with per-layer embeddings
        "gemma3n",
        shapes.gemma3n,
        config(35, 32_768, 262_144, 2048, 16_384, 8, 2, attention__sliding_window=512, embedding_length_per_layer_input=256)
        | heads_of(256)
        | {"altup.num_inputs": 4, "altup.active_idx": 0, "attention.shared_kv_layers": 15},
        tied=True,
    ),
    "gpt-oss-20b": ZooModel(
        "gpt-oss",
        shapes.gpt_oss,
        config(24, 131_072, 201_088, 2880, 2880, 64, 8, expert_count=32, expert_used_count=4, expert_feed_forward_length=2880)
        | heads_of(64)
        | {"attention.sliding_window": 128, "rope.dimension_count": 64},
        quant="MXFP4",
    ),
    "phi-4": ZooModel("phi3", shapes.phi3, config(40, 16_384, 100_352, 5120, 17_920, 40, 10, rope__dimension_count=128)),
    "mistral-nemo-12b": ZooModel("llama", shapes.llama, config(40, 131_072, 131_072, 5120, 14_336, 32, 8) | heads_of(128)),
    "deepseek-v2-lite": ZooModel(
        "deepseek2",
        shapes.deepseek2,
        config(27, 163_840, 102_400, 2048, 10_944, 16, 1, expert_count=64, expert_used_count=6, expert_feed_forward_length=1408)
        | {"leading_dense_block_count": 1, "expert_shared_count": 2, "rope.dimension_count": 64}
        | {"attention.kv_lora_rank": 512, "attention.key_length": 576, "attention.value_length": 512}
        | {"attention.key_length_mla": 192, "attention.value_length_mla": 128},
    ),
    "qwen3.5-class-9b": ZooModel(  # the class of it
        "qwen35",
        shapes.qwen35,
        config(32, 262_144, 248_320, 4096, 12_288, 16, 4) | heads_of(256) | _HYBRID | _SECTIONS
        | {"ssm.inner_size": 4096, "ssm.time_step_rank": 32},
    ),
    "qwen3.5-class-27b": ZooModel(
        "qwen35", shapes.qwen35, {**_HYBRID_27B, "block_count": 65, "nextn_predict_layers": 1}
    ),
    "lfm2-1.2b": ZooModel(
        "lfm2",
        shapes.lfm2,
        {
            **config(16, 128_000, 65_536, 2048, 8192, 32, 0, shortconv__l_cache=3),
            "attention.head_count_kv": [8 if block in _LFM2_ATTENTION else 0 for block in range(16)],
        },
        tied=True,
        output_norm="token_embd_norm.weight",
    ),
    "mamba-2.8b": ZooModel(  # vocabulary padded to a multiple of 8, as converted
        "mamba",
        shapes.mamba,
        config(64, 1_048_576, 50_280, 2560, 0, 0, 0)
        | {"ssm.conv_kernel": 4, "ssm.inner_size": 5120, "ssm.state_size": 16, "ssm.time_step_rank": 160},
        tied=True,
    ),
    "smollm2-135m": ZooModel("llama", shapes.llama, config(30, 8192, 49_152, 576, 1536, 9, 3), tied=True, quant="Q4_1"),
    "bonsai-27b": ZooModel("qwen35", shapes.qwen35, _HYBRID_27B, quant="Q1_0"),  # the class of it
}  # fmt: skip

"""Models of the published speeds: hyperparameters as their public config files give them, made into headers as the zoo's are.

Where no config was at hand the shape is that of the model's class, and says so. Knows no speed.
"""

import functools
from dataclasses import replace

from tests import zoo
from tests import zoo_shapes as shapes
from tests.zoo_models import MODELS, ZooModel, config, heads_of
from tokencli.core import ModelInfo
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header


def _llama(layers: int, vocabulary: int, width: int, inner: int, heads: int, kv_heads: int, size: int, tied: bool) -> ZooModel:
    return ZooModel(
        "llama", shapes.llama, config(layers, 131_072, vocabulary, width, inner, heads, kv_heads) | heads_of(size), tied=tied
    )


def _qwen3(layers: int, width: int, inner: int, heads: int, *, tied: bool = True) -> ZooModel:
    return ZooModel("qwen3", shapes.qwen3, config(layers, 40_960, 151_936, width, inner, heads, 8) | heads_of(128), tied=tied)


def _gemma3(layers: int, width: int, inner: int, heads: int, kv_heads: int, window: int) -> ZooModel:
    sizes = config(layers, 32_768, 262_144, width, inner, heads, kv_heads, attention__sliding_window=window)
    return ZooModel("gemma3", shapes.gemma3, sizes | heads_of(256), tied=True)


def _lfm2(width: int, inner: int) -> ZooModel:
    like = MODELS["lfm2-1.2b"]
    own = {"embedding_length": width, "feed_forward_length": inner, "attention.head_count": width // 64}
    return replace(like, metadata={**like.metadata, **own})


SPEED_MODELS = {
    "Qwen3-0.6B": _qwen3(28, 1024, 3072, 16),
    "Qwen3-1.7B": _qwen3(28, 2048, 6144, 16),
    "Qwen3-4B": _qwen3(36, 2560, 9728, 32),
    "Qwen3-8B": MODELS["qwen3-8b"],
    "Qwen3-14B": _qwen3(40, 5120, 17_408, 40, tied=False),
    "Qwen3-30B-A3B": MODELS["qwen3-30b-a3b"],
    "Qwen2.5-7B": MODELS["qwen2.5-7b"],
    "Qwen3.5-9B": MODELS["qwen3.5-class-9b"],
    "Qwen3.6-27B": replace(MODELS["bonsai-27b"], quant="Q4_K_M"),  # the class of it, without a draft head
    "Bonsai-27B": MODELS["bonsai-27b"],
    "Bonsai-8B": MODELS["qwen3-8b"],
    "Bonsai-4B": _qwen3(36, 2560, 9728, 32),
    "gemma-3-1b": _gemma3(26, 1152, 6912, 4, 1, 512),
    "gemma-3-4b": _gemma3(34, 2560, 10_240, 8, 4, 1024),
    "gemma-3-270m": _gemma3(18, 640, 2048, 4, 1, 512),
    "Llama-3.2-1B": MODELS["llama-3.2-1b"],
    "Llama-3.2-3B": _llama(28, 128_256, 3072, 8192, 24, 8, 128, tied=True),
    "llama-7B": _llama(32, 32_000, 4096, 11_008, 32, 32, 128, tied=False),
    "Mistral-Small-24B": _llama(40, 131_072, 5120, 32_768, 32, 8, 128, tied=False),
    "Ministral-3-3B": _llama(26, 131_072, 3072, 9216, 32, 8, 128, tied=True),
    "phi-4-14B": MODELS["phi-4"],
    "Phi-4-mini": ZooModel("phi3", shapes.phi3, config(32, 131_072, 200_064, 3072, 8192, 24, 8), tied=True),
    "SmolLM2-135M": MODELS["smollm2-135m"],
    "SmolLM2-360M": _llama(32, 49_152, 960, 2560, 15, 5, 64, tied=True),
    "LFM2-350M": _lfm2(1024, 4608),
    "LFM2-700M": _lfm2(1536, 6912),
    "LFM2-1.2B": MODELS["lfm2-1.2b"],
}  # fmt: skip


@functools.cache
def info(name: str, quant: str) -> ModelInfo:
    part = zoo.of(replace(SPEED_MODELS[name], quant=quant), name)
    return model_info(parse_header(part.data, part.file_bytes, name))

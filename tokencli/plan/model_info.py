"""From a GGUF header to what plans need to know of a model, by the rules of the linked llama.cpp. Pure.

Knows which metadata an architecture is described by and which tensors go where; knows no file and no device. What decides
about each block stands in plan/blocks.py.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tokencli.core import LargeTensor, ModelInfo
from tokencli.errors import BadModelFile
from tokencli.header import MAX_LAYERS, Header, Tensor
from tokencli.plan import blocks

MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS in llama-hparams.h; llama.cpp aborts above
MAX_EMBEDDING = 1 << 20

BLOCK = re.compile(r"blk\.([0-9]{1,4})\.")
EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")  # LLM_FFN_EXPS_REGEX in common/common.h
# Where tensors go that belong to no block: LLM_TENSOR_INFOS in llama-arch.cpp (LLM_TENSOR_LAYER_INPUT, _REPEATING, _OUTPUT).
INPUTS = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
WITH_FIRST_BLOCK = ("rope_freqs", "rope_factors_long", "rope_factors_short", "per_layer_model_proj", "per_layer_proj_norm",
                     "token_embd_norm", "hrm")  # fmt: skip
OUTPUT_NORM_MISNAMED = (("token_embd_norm", "lfm2"), ("token_embd_norm", "lfm2moe"))  # LLM_TENSOR_OUTPUT_NORM_LFM2

LARGE = 1 << 27  # what every Vulkan device can hold in a storage buffer: the specification's least maxStorageBufferRange
_TRIED = 512  # tokens that llama.cpp tries a weight's operation with


@dataclass(frozen=True, slots=True)
class _Weights:
    """Bytes; `output` has a copy of the token embeddings if `tied`: there is no output matrix then.

    llama.cpp makes the copy only where output and input lie in different memory (TENSOR_DUPLICATED in create_tensor).
    """

    blocks: tuple[int, ...]
    experts: tuple[int, ...]
    input: int
    output: int
    tied: bool


def model_info(header: Header) -> ModelInfo:
    """All that the header tells. Raises BadModelFile where it describes nothing that llama.cpp can run."""
    layers = _layers(header)
    draft_heads = header.count("nextn_predict_layers", layers) or 0
    embedding = header.count("embedding_length", MAX_EMBEDDING)
    if not embedding:
        raise BadModelFile(f"{header.name} names no embedding length", "it is not a model file that llama.cpp can run")
    experts, experts_used = _experts(header, layers)
    cache = blocks.cache(header, layers, draft_heads, embedding)
    weights = _weights(header, layers)
    info = ModelInfo(
        architecture=header.architecture,
        quant=header.quant,
        layers=layers,
        context_trained=header.count("context_length") or None,
        embedding_length=embedding,
        vocabulary=header.vocabulary,
        chat_template=header.text("tokenizer.chat_template"),
        file_bytes=header.file_bytes,
        weight_bytes=sum(tensor.bytes for tensor in header.tensors),
        block_bytes=weights.blocks,
        expert_bytes=weights.experts,
        input_bytes=weights.input,
        output_bytes=weights.output,
        tied=weights.tied,
        kv_heads=cache.kv_heads,
        key_lengths=cache.key_lengths,
        value_lengths=cache.value_lengths,
        sliding_layers=cache.sliding,
        recurrent_layers=cache.recurrent,
        recurrent_bytes=cache.recurrent_bytes,
        sliding_window=cache.window,
        kv_layers_shared=cache.shared,
        kv_lora_rank=cache.mla_rank,
        mla_key_length=cache.mla_key_length,
        mla_value_length=cache.mla_value_length,
        index_cache=bool(header.count("attention.indexer.key_length")),
        large_tensors=tuple(_large(header, layers - draft_heads, weights.tied, experts_used)),
        experts=experts,
        experts_used=experts_used,
        draft_heads=draft_heads,
        shard=header.part,
        parameters=sum(math.prod(tensor.shape) for tensor in header.tensors),
        type_bytes=_by_type(header, layers - draft_heads, weights.tied, experts_used / experts if experts else 1.0),
    )
    return _looped(info, header)


def _layers(header: Header) -> int:
    layers = header.of_architecture("block_count")
    if not isinstance(layers, int) or isinstance(layers, bool) or not 0 < layers <= MAX_LAYERS:
        hint = "a projector, adapter or vocabulary cannot be run: take the model's own file"
        raise BadModelFile(f"{header.name} has no usable number of layers: it is not a language model", hint)
    return layers


def _experts(header: Header, layers: int) -> tuple[int, int]:
    """Experts per block and the most used in any; llama.cpp aborts where they do not go together (load_hparams)."""
    experts = header.count("expert_count", MAX_EXPERTS) or 0
    used = max(header.counts("expert_used_count", layers, MAX_EXPERTS) or (0,))
    if used > experts or (experts and not used):
        raise BadModelFile(f"{header.name} uses {used} experts of {experts}", "download it again")
    return experts, used


def _weights(header: Header, layers: int) -> _Weights:
    """Bytes by where llama.cpp puts the tensors. What no block owns but all use goes with the first."""
    sizes, expert_sizes = [0] * layers, [0] * layers
    named: dict[str, int] = {}
    input_bytes = output_bytes = 0
    for tensor in header.tensors:
        place = place_of(tensor.name, header.architecture)
        if place == "input":
            input_bytes += tensor.bytes
        elif place == "output":
            output_bytes += tensor.bytes
        elif place < layers:
            sizes[place] += tensor.bytes
            expert_sizes[place] += tensor.bytes if EXPERTS.search(tensor.name) else 0
        else:
            raise BadModelFile(f"{header.name} has a tensor {tensor.name}, but only {layers} blocks", "download it again")
        named[tensor.name] = tensor.bytes
    tied = "output.weight" not in named and "token_embd.weight" in named
    output_bytes += named["token_embd.weight"] if tied else 0
    return _Weights(tuple(sizes), tuple(expert_sizes), input_bytes, output_bytes, tied)


def _by_type(header: Header, trunk: int, tied: bool, used: float) -> dict[str, float]:
    """What a decoded token reads, by tensor type: of the experts those used, of the input nothing (one row)."""
    found: dict[str, float] = {}
    for tensor in header.tensors:
        place = "output" if tied and tensor.name == "token_embd.weight" else place_of(tensor.name, header.architecture)
        if place == "input" or (isinstance(place, int) and place >= trunk):
            continue
        share = used if EXPERTS.search(tensor.name) else 1.0
        found[tensor.type] = found.get(tensor.type, 0.0) + share * tensor.bytes
    return found


def _large(header: Header, trunk: int, tied: bool, experts_used: int) -> Iterator[LargeTensor]:
    """Matrices that llama.cpp may leave on the host: the tensor, or the result of a trial multiplication, is larger than LARGE
    (weight_buft_supported in llama-model-loader.cpp; ggml_backend_vk_device_supports_op).
    """
    for tensor in header.tensors:
        place = place_of(tensor.name, header.architecture)
        if tied and tensor.name == "token_embd.weight":
            place = "output"
        if place == "input" or len(tensor.shape) == 1 or tensor.name.endswith(".bias"):
            continue
        reach = max(tensor.bytes, _tried_bytes(tensor, experts_used))
        if reach > LARGE and (place == "output" or place < trunk):
            expert = EXPERTS.search(tensor.name) is not None
            yield LargeTensor(tensor.name, None if place == "output" else place, tensor.bytes, reach, expert)


def _tried_bytes(tensor: Tensor, experts_used: int) -> int:
    """Of the result of multiplying with 512 tokens, of experts with those that a token uses: f32."""
    used = experts_used if EXPERTS.search(tensor.name) else math.prod(tensor.shape[2:])
    return 4 * tensor.shape[1] * _TRIED * used


def place_of(name: str, architecture: str) -> int | Literal["input", "output"]:
    """Where a tensor goes: with a block, or before or after all of them."""
    if found := BLOCK.match(name):
        return int(found[1])
    stem = name.partition(".")[0]
    if stem in INPUTS:
        return "input"
    return 0 if stem in WITH_FIRST_BLOCK and (stem, architecture) not in OUTPUT_NORM_MISNAMED else "output"


def _looped(info: ModelInfo, header: Header) -> ModelInfo:
    """Nanbeige runs its blocks several times, each time with a KV cache of its own (load_arch_hparams in nanbeige.cpp)."""
    passes = (header.count("num_loops", MAX_LAYERS) or 1) if info.architecture == "nanbeige" else 1
    layers = info.layers * passes
    if layers > MAX_LAYERS:
        raise BadModelFile(f"{header.name} has {layers:,} layers", "download it again")
    if passes == 1:
        return info
    return replace(
        info,
        layers=layers,
        passes=passes,
        block_bytes=info.block_bytes + (0,) * (layers - info.layers),
        expert_bytes=info.expert_bytes + (0,) * (layers - info.layers),
        kv_heads=info.kv_heads * passes,
        key_lengths=info.key_lengths * passes,
        value_lengths=info.value_lengths * passes,
        sliding_layers=info.sliding_layers * passes,
        recurrent_layers=info.recurrent_layers * passes,
        recurrent_bytes=info.recurrent_bytes * passes,
    )

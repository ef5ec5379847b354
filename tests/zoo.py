"""Headers of well-known models, made from hyperparameters: what a hub would send of the first megabytes of each file.

`header` gives the bytes and the file's whole size, for ghost.py to make a sparse file of; no weights exist. Token texts are
left out unless asked for, as ghost files leave them out.
"""

import functools
import struct

from tests.unit.gguf_bytes import string, value
from tests.zoo_models import MODELS, ZooModel
from tokencli.header import FILE_TYPES, TENSOR_TYPES, Header
from tokencli.world.gguf_file import parse_header
from tokencli.world.ghost import Part

_IDS = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
_FTYPES = {name: number for number, name in FILE_TYPES.items()}
_ALIGNMENT = 32
_EXACT = ("norm", "ffn_gate_inp", "ssm_a", "ssm_d", "ssm_conv1d", "ssm_dt", "ssm_x", "shortconv.conv", "sinks", "altup", "laurel",
          "rope_freqs", "bias", "inp_gate", "blk.0.proj")  # fmt: skip
# Type of most matrices, of the more important ones (some of attn_v and ffn_down), and of the output.
_MIXES = {
    "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K"),
    "Q4_0": ("Q4_0", "Q4_0", "Q6_K"),
    "Q4_1": ("Q4_1", "Q4_1", "Q6_K"),
    "Q5_K_S": ("Q5_K", "Q5_K", "Q5_K"),
    "Q6_K": ("Q6_K", "Q6_K", "Q6_K"),
    "Q8_0": ("Q8_0", "Q8_0", "Q8_0"),
    "MXFP4": ("Q8_0", "Q8_0", "Q8_0"),
    "Q1_0": ("Q1_0", "Q1_0", "Q1_0"),
    "Q2_0": ("Q2_0", "Q2_0", "Q2_0"),
    "BF16": ("BF16", "BF16", "BF16"),
}
_FALLBACK = {
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}  # where a row is no multiple of 256


@functools.cache
def header(name: str, tokens: int | None = None) -> Part:
    """The first bytes of a model's file, with `tokens` token texts if given, and the file's size."""
    return of(MODELS[name], name, tokens)


@functools.cache
def parsed(name: str) -> Header:
    part = header(name)
    return parse_header(part.data, part.file_bytes, name)


def of(model: ZooModel, name: str, tokens: int | None = None) -> Part:
    """`header` of a model that is not in the zoo."""
    metadata: dict[str, object] = {"general.architecture": model.architecture, "general.name": name}
    metadata["general.file_type"] = _FTYPES[model.quant]
    metadata |= {f"{model.architecture}.{key}": _written(key, each) for key, each in model.metadata.items()}
    metadata |= {"tokenizer.ggml.model": "none"} if tokens is None else _vocabulary(tokens)
    return _file(metadata, _tensors(model))


def _tensors(model: ZooModel) -> list[tuple[str, tuple[int, ...], str]]:
    width, vocabulary = model.metadata["embedding_length"], model.metadata["vocab_size"]
    tensors = [("token_embd.weight", (width, vocabulary)), (model.output_norm, (width,))]
    tensors += [] if model.tied else [("output.weight", (width, vocabulary))]
    tensors += [("rope_freqs.weight", (model.freqs,))] if model.freqs else []
    tensors += model.shapes(model.metadata)
    tensors.sort(key=lambda tensor: _place_in_file(tensor[0]))
    return [(name, shape, _type(name, shape, model)) for name, shape in tensors]


def _place_in_file(name: str) -> tuple[int, str]:
    """weight_name_comparer in llama-model-loader.h, which llama-quantize writes files by: the output comes first of all."""
    return (int(name.split(".")[1]) if name.startswith("blk.") else -1), name


def _type(name: str, shape: tuple[int, ...], model: ZooModel) -> str:
    """As llama_tensor_get_type in llama-quant.cpp chooses, for common shapes."""
    if len(shape) == 1 or any(part in name for part in _EXACT):
        return "F32"
    usual, important, output = _MIXES[model.quant]
    if model.quant == "MXFP4" and "_exps" in name:
        return "MXFP4"
    wanted = usual
    if name == "output.weight" or (name == "token_embd.weight" and model.tied):
        wanted = output
    elif ("attn_v." in name or "ffn_down" in name) and _more_bits(int(name.split(".")[1]), model.metadata["block_count"]):
        wanted = important
    _, elements, _ = TENSOR_TYPES[_IDS[wanted]]
    if shape[0] % elements:
        wanted = _FALLBACK.get(wanted, "F16")
    return wanted if shape[0] % 32 == 0 else "F16"


def _more_bits(block: int, blocks: int) -> bool:
    eighth = blocks // 8
    return block < eighth or block >= 7 * blocks // 8 or (block - eighth) % 3 == 2


def _vocabulary(count: int) -> dict[str, object]:
    """Like a byte-pair vocabulary with as many merges."""
    tokens = [f"token {number:06d}" for number in range(count)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * count,
        "tokenizer.ggml.merges": [f"{number:x} {number:o}" for number in range(count)],
    }


def _written(key: str, each: object) -> object:
    """Lists as the arrays of u32 or i32 that llama.cpp asks for."""
    if isinstance(each, list) and key != "rope.dimension_sections":
        return struct.pack(f"<IIQ{len(each)}I", 9, 4, len(each), *each)
    return each


def _file(metadata: dict[str, object], tensors: list[tuple[str, tuple[int, ...], str]]) -> Part:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [string(key) + value(each) for key, each in metadata.items()]
    offset = 0
    for name, shape, kind in tensors:
        _, elements, size = TENSOR_TYPES[_IDS[kind]]
        parts.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _IDS[kind], offset))
        count = functools.reduce(lambda product, extent: product * extent, shape, 1)
        offset += -(-count // elements * size // _ALIGNMENT) * _ALIGNMENT
    data = b"".join(parts)
    data += bytes(-len(data) % _ALIGNMENT)
    return Part(data, len(data) + offset)

"""Headers of well-known models, made from hyperparameters: what a hub would send of the first megabytes of each file.

`header` gives the bytes and the file's whole size, for ghost.py to make a sparse file of; no weights exist. Token texts are
left out unless asked for, as ghost files leave them out.
"""

import functools
import struct

from tests.unit.gguf_bytes import string, value
from tests.zoo_models import MODELS, ZooModel
from tokencli.header import FILE_TYPES, TENSOR_TYPES, Header
from tokencli.world.ghost import Part
from tokencli.world.gguf_file import parse_header

_IDS = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
_FTYPES = {name: number for number, name in FILE_TYPES.items()}
_ALIGNMENT = 32
_EXACT = ("norm", "ffn_gate_inp", "ssm_a", "ssm_d", "ssm_conv1d", "ssm_dt", "ssm_x", "shortconv.conv", "sinks", "altup", "laurel",
          "rope_freqs", "bias", "inp_gate", "blk.0.proj")  # fmt: skip
# Type of most matrices, of the more important ones (the output and half of attn_v and ffn_down), of the token embeddings.
_MIXES = {
    "Q4_K_M": ("Q4_K", "Q6_K", "Q4_K"),
    "Q4_1": ("Q4_1", "Q4_1", "Q4_1"),
    "MXFP4": ("Q8_0", "Q8_0", "Q8_0"),
    "Q1_0": ("Q1_0", "Q1_0", "Q1_0"),
}
_FALLBACK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # where a row is no multiple of 256 (llama_tensor_get_type in llama-quant.cpp)


@functools.cache
def header(name: str, tokens: int | None = None) -> Part:
    """The first bytes of a model's file, with `tokens` token texts if given, and the file's size."""
    model = MODELS[name]
    metadata: dict[str, object] = {"general.architecture": model.architecture, "general.name": name}
    metadata["general.file_type"] = _FTYPES.get({"MXFP4": "MXFP4"}.get(model.quant, model.quant), 0)
    metadata |= {f"{model.architecture}.{key}": _written(key, each) for key, each in model.metadata.items()}
    metadata |= {"tokenizer.ggml.model": "none"} if tokens is None else _vocabulary(tokens)
    return _file(metadata, _tensors(model))


def parsed(name: str) -> Header:
    part = header(name)
    return parse_header(part.data, part.file_bytes, name)


def _tensors(model: ZooModel) -> list[tuple[str, tuple[int, ...], str]]:
    width, vocabulary = model.metadata["embedding_length"], model.metadata["vocab_size"]
    tensors = [("token_embd.weight", (width, vocabulary)), (model.output_norm, (width,))]
    tensors += [] if model.tied else [("output.weight", (width, vocabulary))]
    tensors += [("rope_freqs.weight", (model.freqs,))] if model.freqs else []
    tensors += model.shapes(model.metadata)
    return [(name, shape, _type(name, shape, model)) for name, shape in tensors]


def _type(name: str, shape: tuple[int, ...], model: ZooModel) -> str:
    if len(shape) == 1 or any(part in name for part in _EXACT):
        return "F32"
    usual, important, embeddings = _MIXES[model.quant]
    if model.quant == "MXFP4" and "_exps" in name:
        return "MXFP4"
    block = int(name.split(".")[1]) if name.startswith("blk.") else 0
    wanted = usual
    if name == "output.weight" or (name == "token_embd.weight" and model.tied):
        wanted = important
    elif name.startswith("token_embd"):
        wanted = embeddings
    elif ("attn_v" in name or "ffn_down" in name) and block % 2:
        wanted = important
    _, elements, _ = TENSOR_TYPES[_IDS[wanted]]
    if shape[0] % elements:
        wanted = _FALLBACK.get(wanted, "F16")
    return wanted if shape[0] % 32 == 0 else "F16"


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

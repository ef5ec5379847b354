"""Tiny GGUF models with random weights, the same for the same seed, which llama.cpp loads and decodes like any other.

`write` makes one of four kinds; `scripted` makes one whose greedy answer is given. Both take a few milliseconds.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tests import tiny_vocabulary
from tests.tiny_vocabulary import DEFAULT_TEMPLATE, EOS, TURN_END

Floats = npt.NDArray[np.float32]
WeightType = Literal["F32", "F16", "Q8_0"]

KINDS = ("llama", "sliding", "hybrid", "experts")
"""Plain attention; a sliding window in every second layer; short convolutions (recurrent) likewise; four experts of which
two are used. The last layer always attends to the whole context."""

_ARCHITECTURE = {"llama": "llama", "sliding": "gemma3", "hybrid": "lfm2", "experts": "llama"}
_HEAD_SIZE = 64  # what every backend's flash attention supports; the heads are then wider than the embedding
_EXPERTS = 4
_CONVOLUTION = 3  # tokens that a short convolution looks at
# Attention looks sharply at few tokens, so that they matter, but its share of the sum is small: flash attention rounds to
# half precision, which magnifies the last bits in which F32 matrices differ between one token at once and several.
_SHARPNESS = 4
_ATTENTION_SHARE = 0.25
_LOGIT_SPREAD = 4
_REFUSAL = 100  # how far the constant component pushes a refused token down
_ALIGNMENT = 32


def write(
    path: Path,
    kind: str = "llama",
    *,
    vocab_size: int = 512,
    layers: int | None = None,
    embedding: int = 64,
    seed: int = 0,
    weight_type: WeightType = "F32",
    chat_template: str | None = DEFAULT_TEMPLATE,
    add_bos: bool = True,
    tied: bool = False,
    eog: bool = False,
    letters: bool = False,
    window: int = 32,
    context: int = 4096,
    noise: float = 0.0,
    noise_seed: int = 1,
    extra: dict[str, object] | None = None,
) -> Path:
    """Write a whole model.

    A bad draft for it is the same with another seed; a good one is the same with `noise`, which is added to every matrix
    in that proportion to its own spread: about 0.85 of the greedy tokens stay the same with 0.02, half of them with 0.1.
    Special tokens are not produced; `eog` lets the two that end a generation compete like any other. With `letters` only
    printable single characters are produced, so that an answer has the same tokens when it is read again. `extra` overrides
    metadata, and removes the entries it sets to None. Logits do not depend on the batch at all with Q8_0 (on the CPU):
    the type for tests of equality. With F32 and F16 they differ by up to 0.01, which should change one greedy choice in
    some 4,000 (sliding: 1,000).
    """
    if kind not in KINDS:
        raise ValueError(f"no kind of tiny model is called {kind!r}: {', '.join(KINDS)}")
    if embedding % 64:
        raise ValueError(f"the embedding is a multiple of 64, not {embedding}")
    vocabulary = tiny_vocabulary.of_size(vocab_size)
    weights = _Weights(seed, noise, noise_seed)
    full = [(below % 2 == 0) or kind in ("llama", "experts") for below in reversed(range(layers or 4))]
    heads = embedding // _HEAD_SIZE if kind == "hybrid" else 4
    kv_heads = max(heads // 2, 1)
    architecture = _ARCHITECTURE[kind]
    metadata = _metadata(architecture, f"tiny {kind} {seed}", len(full), embedding, heads, kv_heads, context)
    if kind == "sliding":
        metadata[f"{architecture}.attention.sliding_window"] = window
        metadata[f"{architecture}.attention.sliding_window_pattern"] = [not whole for whole in full]
    elif kind == "hybrid":
        metadata[f"{architecture}.attention.head_count_kv"] = [kv_heads if whole else 0 for whole in full]
        metadata[f"{architecture}.shortconv.l_cache"] = _CONVOLUTION
    elif kind == "experts":
        metadata[f"{architecture}.expert_count"] = _EXPERTS
        metadata[f"{architecture}.expert_used_count"] = 2

    _vocabulary_matrices(weights, kind, vocab_size, embedding, tied, _refused(vocab_size, eog, letters))
    for layer, whole in enumerate(full):
        prefix = f"blk.{layer}."
        if kind == "hybrid" and not whole:
            _convolution(weights, prefix, embedding)
        else:
            _attention(weights, prefix, embedding, heads, kv_heads, normed=kind in ("sliding", "hybrid"))
        _feed_forward(weights, prefix, embedding, experts=kind == "experts")
        if kind == "sliding":
            weights.norm(prefix + "post_attention_norm.weight", embedding, around=_ATTENTION_SHARE)
            weights.norm(prefix + "post_ffw_norm.weight", embedding, around=0.5)

    metadata["general.file_type"] = {"F32": 0, "F16": 1, "Q8_0": 7}[weight_type]
    metadata |= vocabulary.metadata(chat_template, add_bos) | (extra or {})
    return _write_gguf(path, metadata, weights.tensors, weight_type)


class _Weights:
    """The tensors so far, each drawn as it is named.

    The first component of the residual stream is the same for every token and no layer writes to it: a constant that the
    output head can use to keep some tokens out.
    """

    def __init__(self, seed: int, noise: float, noise_seed: int) -> None:
        self.tensors: dict[str, Floats] = {}
        self._random = np.random.default_rng(seed)
        self._noise = noise
        self._noise_random = np.random.default_rng([noise_seed, seed])

    def matrix(self, name: str, *shape: int, gain: float = 1.0, to_residual: bool = False) -> Floats:
        """Random values, scaled so that an input of size 1 gives an output of the size `gain`."""
        values = self._random.standard_normal(shape, np.float32)
        if self._noise:
            values += np.float32(self._noise) * self._noise_random.standard_normal(shape, np.float32)
        values *= np.float32(gain / shape[-1] ** 0.5)
        if to_residual:
            values[..., 0, :] = 0
        self.tensors[name] = values
        return values

    def norm(self, name: str, size: int, around: float = 1.0) -> Floats:
        values = np.float32(around) * (1 + np.float32(0.1) * self._random.standard_normal(size, np.float32))
        self.tensors[name] = values
        return values


def _refused(size: int, eog: bool, letters: bool) -> list[int]:
    """Tokens that are never produced."""
    if letters:
        printable = range(tiny_vocabulary.FIRST_BYTE + 0x21, tiny_vocabulary.FIRST_BYTE + 0x7F)
        return [token for token in range(size) if token not in printable]
    return [token for token in range(tiny_vocabulary.FIRST_BYTE) if not (eog and token in (EOS, TURN_END))]


def _vocabulary_matrices(weights: _Weights, kind: str, size: int, embedding: int, tied: bool, refused: list[int]) -> None:
    norm = weights.norm("token_embd_norm.weight" if kind == "hybrid" else "output_norm.weight", embedding)
    spread = embedding**-0.5 if kind == "sliding" else 1.0  # Gemma multiplies by the square root itself
    tokens = weights.matrix("token_embd.weight", size, embedding, gain=spread * embedding**0.5)
    tokens[:, 0] = spread
    if not tied:
        output = weights.matrix("output.weight", size, embedding, gain=_LOGIT_SPREAD)
        output[:, 0] = 0
        output[refused, 0] = -_REFUSAL
        return
    # Alternating signs: otherwise a token is most like itself, and the model repeats it for ever.
    norm *= np.where(np.arange(embedding) % 2, 1, -1) * _LOGIT_SPREAD / (spread * embedding**0.5)
    norm[0] = _REFUSAL / spread
    tokens[refused, 0] *= -1


def _attention(weights: _Weights, prefix: str, embedding: int, heads: int, kv_heads: int, *, normed: bool) -> None:
    weights.norm(prefix + "attn_norm.weight", embedding)
    weights.matrix(prefix + "attn_q.weight", heads * _HEAD_SIZE, embedding, gain=_SHARPNESS)
    weights.matrix(prefix + "attn_k.weight", kv_heads * _HEAD_SIZE, embedding)
    weights.matrix(prefix + "attn_v.weight", kv_heads * _HEAD_SIZE, embedding)
    output = prefix + "attn_output.weight"
    weights.matrix(output, embedding, heads * _HEAD_SIZE, gain=_ATTENTION_SHARE, to_residual=True)
    if normed:
        weights.norm(prefix + "attn_q_norm.weight", _HEAD_SIZE, around=_SHARPNESS)
        weights.norm(prefix + "attn_k_norm.weight", _HEAD_SIZE)


def _convolution(weights: _Weights, prefix: str, embedding: int) -> None:
    weights.norm(prefix + "attn_norm.weight", embedding)
    weights.matrix(prefix + "shortconv.in_proj.weight", 3 * embedding, embedding)
    weights.matrix(prefix + "shortconv.conv.weight", embedding, _CONVOLUTION)
    weights.matrix(prefix + "shortconv.out_proj.weight", embedding, embedding, to_residual=True)


def _feed_forward(weights: _Weights, prefix: str, embedding: int, experts: bool) -> None:
    weights.norm(prefix + "ffn_norm.weight", embedding)
    if experts:
        weights.matrix(prefix + "ffn_gate_inp.weight", _EXPERTS, embedding, gain=2)
    name, several = ("_exps", (_EXPERTS,)) if experts else ("", ())
    weights.matrix(f"{prefix}ffn_gate{name}.weight", *several, 2 * embedding, embedding, gain=2)
    weights.matrix(f"{prefix}ffn_up{name}.weight", *several, 2 * embedding, embedding)
    weights.matrix(f"{prefix}ffn_down{name}.weight", *several, embedding, 2 * embedding, to_residual=True)


def scripted(path: Path, pieces: Sequence[bytes], *, end: bool = True, context: int = 4096) -> Path:
    """Write a model whose greedy answer is `pieces`, one token each, after any prompt that does not end inside them.

    The layers are empty, so the last token alone decides: each piece calls for the next one, the last for the end of the
    turn (or the first again, if not `end`), and any other token, such as the line feed a prompt ends with, for the first.
    A piece is any bytes, half a character too, and may come again (see `tiny_vocabulary.for_script` for the limit);
    b"<think>" is the special token. The wanted token has all but none of the probability to itself: sampling agrees.
    """
    vocabulary, script = tiny_vocabulary.for_script(pieces)
    embedding = 64 * (len(script) // 64 + 1)  # one component per piece, and the first one for any other token
    weights = _Weights(0, 0, 0)
    _attention(weights, "blk.0.", embedding, 1, 1, normed=False)
    _feed_forward(weights, "blk.0.", embedding, experts=False)
    weights.norm("output_norm.weight", embedding)
    for name, tensor in weights.tensors.items():
        tensor[:] = 1 if name.endswith("norm.weight") else 0
    tokens = np.zeros((vocabulary.size, embedding), np.float32)
    tokens[:, 0] = 1
    tokens[script] = np.eye(embedding, dtype=np.float32)[1 : len(script) + 1]
    output = np.zeros((vocabulary.size, embedding), np.float32)
    logit = 40 / embedding**0.5  # the norm makes the one component as large as all of them should be
    output[script, range(len(script))] = logit
    output[TURN_END if end else script[0], len(script)] = logit
    weights.tensors |= {"token_embd.weight": tokens, "output.weight": output}
    metadata = _metadata("llama", "tiny script", 1, embedding, 1, 1, context)
    return _write_gguf(path, metadata | vocabulary.metadata(DEFAULT_TEMPLATE, add_bos=True), weights.tensors, "F32")


def _metadata(
    architecture: str, name: str, layers: int, embedding: int, heads: int, kv_heads: int | list[int], context: int
) -> dict[str, object]:
    own = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": embedding,
        "feed_forward_length": 2 * embedding,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": _HEAD_SIZE,
        "attention.value_length": _HEAD_SIZE,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": _HEAD_SIZE,
        "rope.freq_base": 10000.0,
    }
    general = {"general.architecture": architecture, "general.name": name, "general.alignment": _ALIGNMENT}
    return general | {f"{architecture}.{key}": value for key, value in own.items()}


def _write_gguf(path: Path, metadata: dict[str, object], tensors: dict[str, Floats], weight_type: WeightType) -> Path:
    present = {key: value for key, value in metadata.items() if value is not None}
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(present))]
    for key, value in present.items():
        kind, content = _entry(value)
        header += [_string(key), struct.pack("<I", kind), content]
    blocks: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        number, data = _encoded(tensor, "F32" if _stays_exact(name, tensor) else weight_type)
        shape = tensor.shape[::-1]
        header += [_string(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset)]
        blocks.append(data + bytes(-len(data) % _ALIGNMENT))
        offset += len(blocks[-1])
    start = b"".join(header)
    with path.open("wb") as file:
        file.write(start + bytes(-len(start) % _ALIGNMENT))
        file.writelines(blocks)
    return path


def _stays_exact(name: str, tensor: Floats) -> bool:
    """Whether real files of any type keep this tensor in F32 too."""
    return tensor.ndim == 1 or "shortconv.conv" in name or "ffn_gate_inp" in name


def _encoded(values: Floats, weight_type: WeightType) -> tuple[int, bytes]:
    """The number of the type in GGUF, and the data."""
    if weight_type == "F32":
        return 0, values.tobytes()
    if weight_type == "F16":
        return 1, values.astype(np.float16).tobytes()
    rows = values.reshape(-1, 32)
    scales = np.abs(rows).max(axis=1, keepdims=True) / 127
    whole = np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0).round().astype(np.int8)
    return 8, np.concatenate([scales.astype(np.float16).view(np.int8), whole], axis=1).tobytes()


def _string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _entry(value: object) -> tuple[int, bytes]:
    """The number of a metadata value's type in GGUF, and the value."""
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return (4, struct.pack("<I", value)) if value >= 0 else (5, struct.pack("<i", value))
        case float():
            return 6, struct.pack("<f", value)
        case str() | bytes():
            return 8, _string(value)
        case list():
            kind = 8 if not value else 5 if type(value[0]) is int else _entry(value[0])[0]
            items = struct.pack(f"<{len(value)}i", *value) if kind == 5 else b"".join(_entry(item)[1] for item in value)
            return 9, struct.pack("<IQ", kind, len(value)) + items
    raise TypeError(f"no metadata can be {value!r}")

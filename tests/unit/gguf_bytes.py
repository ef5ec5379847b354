"""Writes GGUF files byte by byte, right or wrong, from the specification (ggml's docs/gguf.md) and nothing of ours."""

import struct
from collections.abc import Mapping, Sequence

METADATA = {
    "general.architecture": "llama",
    "general.file_type": 2,
    "llama.block_count": 2,
    "llama.context_length": 128,
    "tokenizer.ggml.tokens": ["a", "b", "你"],
}
Q4_0, Q8_0 = 2, 8
TENSORS = (("token_embd.weight", (32, 4), Q4_0), ("output.weight", (64, 3), Q8_0))

_BLOCKS = {0: (1, 4), 1: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), 42: (64, 18)}  # type: (elements, bytes)


def gguf(
    metadata: Mapping[str, object] = METADATA,
    tensors: Sequence[tuple[str, tuple[int, ...], int]] = TENSORS,
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    key_count: int | None = None,
    tensor_count: int | None = None,
    offsets: Sequence[int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; counts and offsets are the true ones unless given. Tensors are (name, shape, type id)."""
    sizes = [size(shape, kind) for _, shape, kind in tensors]
    true_offsets = [sum(_padded(each, alignment) for each in sizes[:index]) for index in range(len(sizes))]
    head = magic + version
    head += struct.pack("<QQ", _or(tensor_count, len(tensors)), _or(key_count, len(metadata)))
    head += b"".join(string(key) + value(each) for key, each in metadata.items())
    for (name, shape, kind), offset in zip(tensors, offsets or true_offsets, strict=True):
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    head = head.ljust(_padded(len(head), alignment), b"\0")
    return head + b"".join(bytes(_padded(each, alignment)) for each in sizes[:-1]) + bytes(sizes[-1] if sizes else 0)


def size(shape: Sequence[int], kind: int) -> int:
    """Bytes of a tensor; 4 an element where the type is unknown."""
    elements, block_bytes = _BLOCKS.get(kind, (1, 4))
    count = 1
    for extent in shape:
        count *= extent
    return count // elements * block_bytes


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(given: object) -> bytes:
    """A metadata value with its type: bytes are taken as they are, type included."""
    match given:
        case bytes():
            return given
        case bool():
            return struct.pack("<I?", 7, given)
        case int():
            return struct.pack("<II", 4, given)
        case float():
            return struct.pack("<If", 6, given)
        case str():
            return struct.pack("<I", 8) + string(given)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(given)) + b"".join(string(each) for each in given)
        case list():
            return struct.pack(f"<IIQ{len(given)}i", 9, 5, len(given), *given)
    raise TypeError(given)


def _padded(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment if alignment > 0 else count


def _or(given: int | None, default: int) -> int:
    return default if given is None else given

"""Yardsticks: models without content in sparse files, to time a tensor type with. Knows the container format and the disk.

Every matrix is zeros of one type, which take as long to read and to unpack as any others; a few KB of disk hold them all.
"""

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tokencli.errors import TokencliError
from tokencli.header import TENSOR_TYPES

_COUNT, _INTEGER, _FLOAT, _STRING, _ARRAY = 4, 5, 6, 8, 9  # types of metadata
_CONTROL, _BYTE = 3, 6  # of tokens
_ALIGNMENT = 32
_NUMBERS = {name: (number, elements, size) for number, (name, elements, size) in TENSOR_TYPES.items()}
_TOKENS = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)))


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a llama-like model: widths, heads, blocks. All widths are multiples of 256, as every tensor type asks for."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    layers: int = 1

    @property
    def block_weights(self) -> int:
        return self.width * (2 * self.width + 2 * self._kv_width + 3 * self.inner)

    @property
    def _kv_width(self) -> int:
        return self.width // self.heads * self.kv_heads

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Name, length of a row, rows."""
        width, inner = self.width, self.inner
        yield from ((f"{name}.weight", width, len(_TOKENS)) for name in ("token_embd", "output"))
        for layer in range(self.layers):
            for name, row, rows in (
                ("attn_q", width, width), ("attn_k", width, self._kv_width), ("attn_v", width, self._kv_width),
                ("attn_output", width, width), ("ffn_gate", width, inner), ("ffn_up", width, inner), ("ffn_down", inner, width),
            ):  # fmt: skip
                yield f"blk.{layer}.{name}.weight", row, rows

    def norms(self) -> Iterator[str]:
        yield "output_norm.weight"
        yield from (f"blk.{layer}.{name}.weight" for layer in range(self.layers) for name in ("attn_norm", "ffn_norm"))


WIDE = Shape(2048, 8192, 32, 8)  # as of a model of a billion weights: reading decides
NARROW = Shape(512, 1536, 8, 2, layers=32)  # its blocks cost about as much as reading it


class Yardsticks:
    """Makes them in a folder of its own below `folder`, and removes it on leaving."""

    def __init__(self, folder: Path) -> None:
        self._parent = folder

    def __enter__(self) -> Self:
        """Raises TokencliError where the folder cannot be written to."""
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self._parent, prefix="yardsticks-"))
        except OSError as error:
            raise TokencliError(f"{self._parent} cannot be used: {error.strerror}", "check the folder's permissions") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, tensor_type: str, shape: Shape) -> Path:
        """Raises TokencliError where the disk does not take it."""
        path = self._folder / f"{tensor_type}-{shape.width}x{shape.layers}.gguf"
        _write(path, *_built(tensor_type, shape))
        return path


def layers_for(tensor_type: str, shape: Shape, size: int) -> int:
    """Blocks of such a shape that together have at least `size` bytes."""
    _, elements, block = _NUMBERS[tensor_type]
    return -(-size // (shape.block_weights // elements * block))


def _built(tensor_type: str, shape: Shape) -> tuple[bytes, int]:
    """The header, and the size of the file that begins with it."""
    metadata, infos, at = _metadata(shape), b"", 0
    _, elements, block = _NUMBERS[tensor_type]
    tensors: list[tuple[str, str, tuple[int, ...], int]] = [
        (name, tensor_type, (row, rows), row * rows // elements * block) for name, row, rows in shape.matrices()
    ]
    tensors += [(name, "F32", (shape.width,), 4 * shape.width) for name in shape.norms()]
    for name, kind, sizes, size in tensors:
        infos += _string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, _NUMBERS[kind][0], at)
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(_string(key) + _value(value) for key, value in metadata.items()) + infos
    header += bytes(-len(header) % _ALIGNMENT)
    return header, len(header) + at


def _metadata(shape: Shape) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "yardstick",
        "llama.block_count": shape.layers,
        "llama.context_length": 4096,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.width // shape.heads,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(_TOKENS),
        "tokenizer.ggml.token_type": [_CONTROL] * 3 + [_BYTE] * 256,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _value(value: Any) -> bytes:
    kind, data = _scalar(value)
    return struct.pack("<I", kind) + data


def _scalar(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str):
        return _STRING, _string(value)
    if isinstance(value, float):
        return _FLOAT, struct.pack("<f", value)
    if isinstance(value, int):
        return _COUNT, struct.pack("<I", value)
    return _ARRAY, _array(value)


def _array(values: Sequence[Any]) -> bytes:
    kinds, parts = zip(*map(_scalar, values), strict=True)
    kind = _INTEGER if kinds[0] == _COUNT else kinds[0]  # llama.cpp wants those of token types signed
    return struct.pack("<IQ", kind, len(parts)) + b"".join(parts)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _write(path: Path, header: bytes, size: int) -> None:
    try:
        with path.open("wb") as file:
            file.write(header)
            os.ftruncate(file.fileno(), size)
    except OSError as error:
        raise TokencliError(f"{path.parent} takes no file of {size:,} bytes, even an empty one: {error.strerror}") from None

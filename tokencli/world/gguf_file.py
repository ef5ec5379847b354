"""Reads a GGUF header without its weights, and refuses what llama.cpp should never see. Knows the container format
(GGUF v2 and v3, little endian), no architecture and no device.

Read and parse are one pass over a memory-mapped file: long arrays (vocabularies) are stepped over, not turned into objects.
Source of the layout: the GGUF specification in the ggml repository (docs/gguf.md).
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencli.core import Model
from tokencli.errors import BadModelFile, ModelNotFound

# ggml type id: (name, elements per block, bytes per block), as in the linked ggml (an engine test compares the two).
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}

# llama.cpp's general.file_type: the name people know a quant by (enum llama_ftype in llama.h).
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0",
    41: "Q2_0",
}  # fmt: skip

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

# More than any real model has: a count above is a damaged or hostile file, refused before anything is allocated for it.
MAX_TENSORS = 100_000
MAX_KEYS = 10_000
MAX_ARRAY = 10_000_000
MAX_STRING = 64 << 20
MAX_KEPT = 4096
MAX_LAYERS = 2048


@dataclass(frozen=True, slots=True)
class Array:
    """A metadata array: its element type, length, and where it lies; values are kept only of short ones of numbers."""

    element_type: int
    length: int
    offset: int
    values: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A whole header: metadata by key, tensors in file order, where the tensor data begins, the file's size."""

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def quant(self) -> str:
        """The quant's common name: general.file_type, else the type that holds the most bytes."""
        named = FILE_TYPES.get(self.metadata.get("general.file_type", -1))
        if named:
            return named
        by_type: dict[str, int] = {}
        for tensor in self.tensors:
            by_type[tensor.type] = by_type.get(tensor.type, 0) + tensor.bytes
        return max(by_type, key=lambda name: by_type[name], default="?")

    def of_architecture(self, key: str) -> Any:
        """The value of `<architecture>.<key>`, None where absent."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_model(path: Path, name: str) -> Model:
    """What a plan needs to know of the model at `path`. Raises ModelNotFound, BadModelFile."""
    header = read_header(path)
    return Model(
        name=name,
        file=str(path),
        quant=header.quant,
        architecture=header.architecture,
        bytes=header.file_bytes,
        layers=_layers(header),
        context_trained=_positive(header.of_architecture("context_length")),
    )


def read_header(path: Path) -> Header:
    """Map the file and parse its header. Raises ModelNotFound, BadModelFile; never reads the tensors."""
    try:
        if path.is_dir():
            raise BadModelFile(f"{path} is a folder", "name the .gguf file inside it")
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                raise BadModelFile(f"{path} is empty", "download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_header(data, size, str(path))
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}", "check the path; `tokencli run smollm2-135m` needs none") from None
    except (OSError, ValueError) as error:
        raise BadModelFile(f"{path} cannot be read: {error}", "check the file and its permissions") from None


def parse_header(data: bytes | mmap.mmap, file_bytes: int, name: str) -> Header:
    """Parse a header from the first bytes of a file of `file_bytes`. Raises BadModelFile with what is wrong."""
    _check_magic(bytes(data[:512]), name)
    reader = _Reader(data, name)
    version = reader.scalar("<I")
    if version not in (2, 3):
        raise BadModelFile(*_bad_version(version, name))
    tensor_count = reader.count("<Q", MAX_TENSORS, "tensors")
    key_count = reader.count("<Q", MAX_KEYS, "metadata keys")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("<I"))
    infos = [reader.tensor_info() for _ in range(tensor_count)]
    return _checked(metadata, infos, reader.at, file_bytes, name)


def _checked(metadata: dict[str, Any], infos: list["_Info"], end: int, file_bytes: int, name: str) -> Header:
    """Check that the parts fit together: an architecture, known types, all tensors inside the file."""
    if not isinstance(metadata.get("general.architecture"), str):
        raise BadModelFile(f"{name} names no architecture", "it is not a model file that llama.cpp can run")
    if metadata.get("split.count", 0) not in (0, 1) and not infos:
        raise BadModelFile(f"{name} is a part of a split model without tensors", "name the first part")
    if not infos:
        raise BadModelFile(f"{name} holds a vocabulary or metadata but no weights", "take the model's own file")
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise BadModelFile(f"{name} has an impossible alignment ({alignment!r})", "download it again")
    start = -(-end // alignment) * alignment
    tensors = tuple(_tensor(info, name) for info in infos)
    _check_layout(tensors, alignment, start, file_bytes, name)
    return Header(metadata, tensors, start, file_bytes)


def _check_layout(tensors: tuple[Tensor, ...], alignment: int, start: int, file_bytes: int, name: str) -> None:
    """Tensors stand one after the other, padded to the alignment, and end inside the file."""
    at = 0
    for tensor in tensors:
        if tensor.offset != at:
            raise BadModelFile(
                f"{name}: tensor {tensor.name} ({tensor.type}) begins at {tensor.offset}, not at {at} as its types ask",
                "it was made for another engine or another layout of the type; take a file made for mainline llama.cpp",
            )
        at += -(-tensor.bytes // alignment) * alignment
    needed = start + tensors[-1].offset + tensors[-1].bytes
    if needed > file_bytes:
        raise BadModelFile(
            f"{name} is cut short: {file_bytes:,} of at least {needed:,} bytes are there", "download it again, or resume"
        )


@dataclass(frozen=True, slots=True)
class _Info:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def _tensor(info: _Info, name: str) -> Tensor:
    if info.type_id not in TENSOR_TYPES:
        raise BadModelFile(
            f"{name}: tensor {info.name} has type {info.type_id}, which this llama.cpp does not know",
            "the file needs another engine or a newer llama.cpp; take another quant",
        )
    type_name, block, block_bytes = TENSOR_TYPES[info.type_id]
    elements = 1
    for extent in info.shape:
        elements *= extent
    if elements >= 1 << 48 or info.shape[0] % block:
        raise BadModelFile(
            f"{name}: tensor {info.name} has an impossible shape {info.shape} for {type_name}", "download it again"
        )
    return Tensor(info.name, info.shape, type_name, info.offset, elements // block * block_bytes)


def _check_magic(start: bytes, name: str) -> None:
    if start[:4] == b"GGUF":
        return
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        raise BadModelFile(f"{name} is a web page, not a model", "a link with /blob/ gives a page: use the one with /resolve/")
    if text.startswith(b"version https://git-lfs"):
        raise BadModelFile(
            f"{name} is a Git LFS pointer, not the model itself", "fetch the file with `git lfs pull` or download it"
        )
    if start[:4] in (b"ggjt", b"tjgg", b"ggml", b"lmgg", b"ggmf", b"fmgg"):
        raise BadModelFile(f"{name} is an old GGML file", "take a GGUF of the model")
    if start[:4] == b"FUGG":
        raise BadModelFile(f"{name} is a big-endian GGUF", "take the little-endian file")
    raise BadModelFile(f"{name} is not a GGUF file", "give a .gguf file or an alias from models.toml")


def _bad_version(version: int, name: str) -> tuple[str, str]:
    if version == 1:
        return f"{name} is a GGUF of version 1", "take a newer file of the model"
    if version & 0xFFFF == 0:
        return f"{name} is a big-endian GGUF", "take the little-endian file"
    return f"{name} has GGUF version {version}, this program knows 2 and 3", "update tokencli, or take another file"


def _layers(header: Header) -> int:
    layers = _positive(header.of_architecture("block_count"))
    if layers is None or layers > MAX_LAYERS:
        hint = "a projector, adapter or vocabulary cannot be run: take the model's own file"
        raise BadModelFile(f"{header.architecture} file without a usable layer count: it is not a language model", hint)
    return layers


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class _Reader:
    """A cursor over the header; every read is checked against the end."""

    def __init__(self, data: bytes | mmap.mmap, name: str) -> None:
        self._data, self._name = data, name
        self.at = 4

    def scalar(self, code: str) -> Any:
        size = struct.calcsize(code)
        self._need(size)
        (value,) = struct.unpack_from(code, self._data, self.at)
        self.at += size
        return value

    def count(self, code: str, most: int, what: str) -> int:
        value = int(self.scalar(code))
        if value > most:
            raise BadModelFile(f"{self._name} claims {value:,} {what}: it is damaged", "download it again")
        return value

    def string(self) -> str:
        size = self.count("<Q", MAX_STRING, "bytes in one string")
        self._need(size)
        raw = self._data[self.at : self.at + size]
        self.at += size
        return raw.decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        return self.scalar(self._code(kind))

    def tensor_info(self) -> _Info:
        name = self.string()
        dimensions = self.count("<I", 4, "dimensions of one tensor")
        shape = tuple(self.count("<Q", 1 << 48, "elements in one dimension") for _ in range(dimensions))
        if not shape or 0 in shape:
            raise BadModelFile(f"{self._name}: tensor {name} is empty", "download it again")
        return _Info(name, shape, self.scalar("<I"), self.scalar("<Q"))

    def _array(self) -> Array:
        kind = self.scalar("<I")
        length = self.count("<Q", MAX_ARRAY, "elements in one array")
        start = self.at
        if kind == _STRING:
            self._skip_strings(length)
            return Array(kind, length, start, None)
        code = self._code(kind)
        size = struct.calcsize(code) * length
        self._need(size)
        self.at += size
        values = struct.unpack_from(f"<{length}{code[1]}", self._data, start) if length <= MAX_KEPT else None
        return Array(kind, length, start, values)

    def _skip_strings(self, length: int) -> None:
        """Step over strings: the hot loop of a large vocabulary, so it goes around `scalar`."""
        data, at, unpack = self._data, self.at, struct.Struct("<Q").unpack_from
        try:
            for _ in range(length):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):
            self._need(len(data))
        self.at = at
        self._need(0)

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise BadModelFile(f"{self._name} has a metadata value of unknown type {kind}: it is damaged", "download it again")
        return _SCALARS[kind]

    def _need(self, size: int) -> None:
        if self.at + size > len(self._data):
            raise BadModelFile(f"{self._name} is cut short inside its header", "download it again")

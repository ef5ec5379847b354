"""Reads a GGUF header without its weights, and refuses what llama.cpp should never see. Knows the container format
(GGUF v2 and v3, little endian), no architecture and no device.

Read and parse are one pass over a memory-mapped file: long arrays (vocabularies) are stepped over, not turned into objects.
Source of the layout: the GGUF specification in the ggml repository (docs/gguf.md).
"""

import hashlib
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokencli.core import Model
from tokencli.errors import BadModelFile, ModelNotFound
from tokencli.header import (
    COMPARED_FROM,
    MAX_LAYERS,
    STRING,
    TENSOR_TYPES,
    TOKENS,
    Array,
    Bytes,
    Header,
    Tensor,
    difference_of_vocabularies,
    skip_strings,
)

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_ARRAY = 9
_SAMPLES, _SAMPLE_BYTES = 9, 1 << 20

_OTHER_ENGINES = {36: "bitnet.cpp (its type i2_s)"}
_OTHER_LAYOUT = "it was made for another engine or another layout of the type"
_Q2_0 = "PrismML's fork of llama.cpp has another layout of the type, in blocks of 128"  # report A3-07

# More than any real model has: a count above is a damaged or hostile file, refused before anything is allocated for it.
MAX_TENSORS = 100_000
MAX_KEYS = 10_000
MAX_ARRAY = 10_000_000
MAX_STRING = 64 << 20
MAX_KEPT = 4096


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
    """The header of the model at `path`, with its other parts if it is split; reads no tensor.

    llama.cpp finds the parts by their names, from the first (llama_get_list_splits in llama-model-loader.cpp).
    Raises ModelNotFound, BadModelFile.
    """
    first = _read_part(path)
    number, count = first.part or (1, 1)
    others = _other_parts(path, count) if number == 1 else ()
    return _whole([first, *map(_read_part, others)])


def parse_header(data: Bytes, file_bytes: int, name: str) -> Header:
    """Parse a header from the first bytes of a file of `file_bytes`. Raises BadModelFile with what is wrong."""
    return _whole([_parse_part(data, file_bytes, name)])


def identity(path: Path) -> str:
    """A hash that tells the file from any other: of its size and of samples from its header and weights, in milliseconds.

    Raises OSError.
    """
    size = path.stat().st_size
    found = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        for part in range(_SAMPLES):
            file.seek(part * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
            found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()


def holds_header(data: bytes, file_bytes: int, name: str) -> bool:
    """Whether the first bytes of a file of `file_bytes` hold its whole header. Raises BadModelFile with what is wrong in it."""
    try:
        _parse(data, file_bytes, name)
    except EOFError:
        if len(data) >= file_bytes:
            raise _cut_short(name) from None
        return False
    return True


def vocabulary_difference(path: Path, other_path: Path) -> str | None:
    """Why a draft with the vocabulary of one model cannot serve the other; None where it can.

    Raises ModelNotFound, BadModelFile.
    """
    one, other = read_header(path), read_header(other_path)
    with _mapped(path) as data, _mapped(other_path) as other_data:
        return difference_of_vocabularies(one, data, other, other_data)


def _fingerprint(data: Bytes, tokens: object) -> str | None:
    """16 hex digits of the token texts from id 5 up, as they stand in the file."""
    if not isinstance(tokens, Array) or tokens.element_type != STRING:
        return None
    start = skip_strings(data, tokens.offset, min(COMPARED_FROM, tokens.length))
    with memoryview(data) as view, view[start : tokens.end] as texts:
        return hashlib.sha256(texts).hexdigest()[:16]


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        if path.is_dir():
            raise BadModelFile(f"{path} is a folder", "name the .gguf file inside it")
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise BadModelFile(f"{path} is empty", "download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}", "check the path; `tokencli run smollm2-135m` needs none") from None
    except (OSError, ValueError, struct.error) as error:
        raise BadModelFile(f"{path} cannot be read: {error}", "check the file and its permissions") from None


def _read_part(path: Path) -> Header:
    with _mapped(path) as data:
        return _parse_part(data, len(data), str(path))


def _other_parts(path: Path, count: int) -> Iterator[Path]:
    ending = f"-00001-of-{count:05d}.gguf"
    if count > 1 and not path.name.endswith(ending):
        hint = "llama.cpp finds the parts by their names: give them those they were published with"
        raise BadModelFile(f"{path} is the first of {count} parts, but its name does not end in {ending}", hint)
    for number in range(2, count + 1):
        part = path.with_name(f"{path.name.removesuffix(ending)}-{number:05d}-of-{count:05d}.gguf")
        if not part.exists():
            raise BadModelFile(f"{part} is missing: the model comes in {count} parts", "download all parts into one folder")
        yield part


def _whole(parts: list[Header]) -> Header:
    """One header of those of all parts, checked to be a model's."""
    first = parts[0]
    number, count = first.part or (1, 1)
    if number != 1:
        hint = f"name the first part, the file whose name ends in -00001-of-{count:05d}.gguf"
        raise BadModelFile(f"{first.name} is part {number} of {count} of a split model", hint)
    if len(parts) != count:
        raise BadModelFile(f"{first.name} is the first of {count} parts of a split model", "name it where the others are, too")
    for expected, part in enumerate(parts, 1):
        if count > 1 and part.part != (expected, count):
            raise BadModelFile(f"{part.name} is not part {expected} of {count}", "download the parts again")
    if not isinstance(first.metadata.get("general.architecture"), str):
        raise BadModelFile(f"{first.name} names no architecture", "it is not a model file that llama.cpp can run")
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    if not tensors:
        raise BadModelFile(f"{first.name} holds a vocabulary or metadata but no weights", "take the model's own file")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise BadModelFile(f"{first.name} holds a tensor twice", "download it again")
    if count > 1 and first.metadata.get("split.tensors.count") != len(tensors):
        raise BadModelFile(f"{first.name} and its other parts do not belong together", "download the parts again")
    return replace(first, tensors=tensors, file_bytes=sum(part.file_bytes for part in parts))


def _parse_part(data: Bytes, file_bytes: int, name: str) -> Header:
    """Parse one file: a model or a part of one. Raises BadModelFile."""
    try:
        return _parse(data, file_bytes, name)
    except EOFError:
        raise _cut_short(name) from None


def _cut_short(name: str) -> BadModelFile:
    return BadModelFile(f"{name} is cut short inside its header", "download it again")


def _parse(data: Bytes, file_bytes: int, name: str) -> Header:
    """Raises BadModelFile, and EOFError where the header goes on behind the data."""
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
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise BadModelFile(f"{name} has an impossible alignment ({alignment!r:.40})", "download it again")
    start = -(-reader.at // alignment) * alignment
    tensors = tuple(_tensor(info, name) for info in infos)
    _check_layout(tensors, alignment, start, file_bytes, name)
    return Header(metadata, tensors, start, file_bytes, name, _fingerprint(data, metadata.get(TOKENS)))


def _check_layout(tensors: tuple[Tensor, ...], alignment: int, start: int, file_bytes: int, name: str) -> None:
    """Tensors stand one after the other, padded to the alignment, and end inside the file."""
    at, has_q2_0 = 0, any(tensor.type == "Q2_0" for tensor in tensors)
    for tensor in tensors:
        if tensor.offset != at:
            raise BadModelFile(
                f"{name}: tensor {tensor.name} ({tensor.type}) begins at {tensor.offset}, not at {at} as its types ask",
                f"{_Q2_0 if has_q2_0 else _OTHER_LAYOUT}; take a file made for mainline llama.cpp",
            )
        at += -(-tensor.bytes // alignment) * alignment
    needed = start + tensors[-1].offset + tensors[-1].bytes if tensors else 0
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
        needs = _OTHER_ENGINES.get(info.type_id, "another engine or a newer llama.cpp")
        what = f"{name}: tensor {info.name} has type {info.type_id}, which this llama.cpp does not know"
        raise BadModelFile(what, f"the file needs {needs}; take another quant")
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

    def __init__(self, data: Bytes, name: str) -> None:
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
        if kind == STRING:
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
        if kind == STRING:
            self._skip_strings(length)
            return Array(kind, length, start, self.at, None)
        code = self._code(kind)
        size = struct.calcsize(code) * length
        self._need(size)
        self.at += size
        values = struct.unpack_from(f"<{length}{code[1]}", self._data, start) if length <= MAX_KEPT else None
        return Array(kind, length, start, self.at, values)

    def _skip_strings(self, length: int) -> None:
        try:
            self.at = skip_strings(self._data, self.at, length)
        except (struct.error, OverflowError):
            self._need(len(self._data))
        self._need(0)

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise BadModelFile(f"{self._name} has a metadata value of unknown type {kind}: it is damaged", "download it again")
        return _SCALARS[kind]

    def _need(self, size: int) -> None:
        if self.at + size > len(self._data):
            raise EOFError

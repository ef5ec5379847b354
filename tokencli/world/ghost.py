"""Ghost files: a model's header without its tokens, as sparse as the weights are absent, for llama.cpp's dry run to plan with.
Knows the container format and the disk; knows no architecture. Headers are checked by gguf_file before they come here.

A ghost takes some 40 KB of disk whatever its model's size, and says how large the vocabulary is in place of what its tokens are.
"""

import functools
import hashlib
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tokencli.errors import BadModelFile, ModelNotFound, TokencliError
from tokencli.header import TOKENS, Bytes, skip_strings
from tokencli.listing import parts_of
from tokencli.locks import lock, locked
from tokencli.paths import stamp_of

_STRING, _ARRAY, _COUNT = 8, 9, 4
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_ALIGNMENT = 32
_TOKENIZER = b"tokenizer."
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a model: its first bytes, at least to the end of the header, and how large it is."""

    data: Bytes
    file_bytes: int


class Ghosts:
    """Makes ghosts in a folder of its own below `folder`, one for each content, and removes them on leaving.

    What a killed process left behind goes when the next one begins: each folder is locked by the process that uses it.
    """

    def __init__(self, folder: Path) -> None:
        self._parent = folder / "ghosts"
        self._made: dict[str, Path] = {}

    def __enter__(self) -> Self:
        """Raises TokencliError where the folder cannot be written to."""
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            with locked(self._parent / _LOCK):
                _sweep(self._parent)
                self._folder = Path(tempfile.mkdtemp(dir=self._parent))
                self._lock = lock(self._folder / _LOCK)
        except OSError as error:
            raise TokencliError(f"{self._parent} cannot be used: {error.strerror}", "check the folder's permissions") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)
        self._made.clear()

    def of_file(self, path: Path) -> Path:
        """The ghost of the model at `path`, of all its parts if it is split. Raises ModelNotFound, BadModelFile."""
        return self._of_headers([_thinned(part, stamp_of(part)) for part in map(path.with_name, parts_of(path.name))])

    def of(self, name: str, parts: Sequence[Part]) -> Path:
        """The ghost of a model from the headers of its parts in order; a split one is named by its first. Raises BadModelFile."""
        return self._of_headers([_thin(part, name) for part in parts])

    def _of_headers(self, headers: Sequence[tuple[bytes, int]]) -> Path:
        key = hashlib.sha256(b"".join(b"%b%d" % each for each in headers)).hexdigest()[:16]
        if key not in self._made:
            names = parts_of(f"{key}-00001-of-{len(headers):05d}.gguf" if len(headers) > 1 else f"{key}.gguf")
            for file, (header, size) in zip(names, headers, strict=True):
                _write_sparse(self._folder / file, header, size)
            self._made[key] = self._folder / names[0]
        return self._made[key]


def _sweep(parent: Path) -> None:
    """Remove the folders that no living process has locked; those of other users are theirs."""
    for folder in parent.iterdir():
        if not folder.is_dir() or folder.is_symlink():
            continue
        with suppress(OSError):
            descriptor = lock(folder / _LOCK, wait=False)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}", "check the path") from None
    except (OSError, ValueError) as error:
        raise BadModelFile(f"{path} cannot be read: {error}", "check the file and its permissions") from None


@functools.lru_cache(maxsize=8)
def _thinned(path: Path, _stamp: object) -> tuple[bytes, int]:
    """Kept for the next dry run: stepping over a large vocabulary takes longer than it. Raises ModelNotFound, BadModelFile."""
    with _mapped(path) as data:
        return _thin(Part(data, len(data)), path.name)


def _write_sparse(path: Path, header: bytes, size: int) -> None:
    """Under another name until it is whole. Raises TokencliError where the disk does not take it."""
    new = path.with_suffix(".new")
    try:
        with new.open("wb") as file:
            file.write(header)
            file.truncate(size)
        new.replace(path)
    except OSError as error:
        raise TokencliError(f"{path.parent} takes no file of {size:,} bytes, even an empty one: {error.strerror}") from None


def _thin(part: Part, name: str) -> tuple[bytes, int]:
    """The header without tokens, padded, and the size of the file that begins with it. Raises BadModelFile."""
    try:
        return _without_tokens(_Reader(part.data), part.file_bytes)
    except (struct.error, KeyError, OverflowError):
        raise BadModelFile(f"{name} is cut short inside its header", "download it again") from None


def _without_tokens(reader: "_Reader", file_bytes: int) -> tuple[bytes, int]:
    """Texts and arrays of the tokenizer go; tokens are replaced by their number, as llama.cpp asks for of a model of the type
    "none" (llama_vocab::impl::load in llama-vocab.cpp). All else stays, byte by byte.
    """
    data, alignment, tokens, architecture = reader.data, _ALIGNMENT, None, b""
    version = reader.number("<I", at=4)
    tensor_count, key_count = reader.number("<Q", at=8), reader.number("<Q", at=16)
    reader.at = 24
    kept: dict[bytes, bytes] = {}
    bulky: list[bytes] = []
    for _ in range(key_count):
        start, key, kind, content = reader.entry()
        if key == b"general.architecture":
            architecture = data[content + 8 : reader.at]
        elif key == b"general.alignment":
            alignment = reader.number("<I", at=content)
        elif key == TOKENS.encode():
            tokens = reader.number("<Q", at=content + 4)
        kept[key] = data[start : reader.at]
        if key.startswith(_TOKENIZER) and kind in (_STRING, _ARRAY):
            bulky.append(key)
    if tokens is not None:
        for key in bulky:
            del kept[key]
        size = architecture + b".vocab_size"
        kept[size] = _string(size) + struct.pack("<II", _COUNT, tokens)
        kept[b"tokenizer.ggml.model"] = _string(b"tokenizer.ggml.model") + struct.pack("<I", _STRING) + _string(b"none")
    infos = reader.at
    reader.skip_tensors(tensor_count)
    start = -(-reader.at // alignment) * alignment
    header = b"GGUF" + struct.pack("<IQQ", version, tensor_count, len(kept)) + b"".join(kept.values()) + data[infos : reader.at]
    header += bytes(-len(header) % alignment)
    return header, len(header) + max(file_bytes - start, 0)


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


class _Reader:
    """Steps through a header. Raises struct.error at the end of the data, KeyError at an unknown type."""

    def __init__(self, data: Bytes) -> None:
        self.data, self.at = data, 0

    def number(self, code: str, at: int) -> int:
        (value,) = struct.unpack_from(code, self.data, at)
        return int(value)

    def entry(self) -> tuple[int, bytes, int, int]:
        """Step over a metadata entry: where it begins, its key, the type of its value, where that begins."""
        start = self.at
        key = self._text()
        kind = self.number("<I", self.at)
        content = self.at + 4
        self.at = content
        self._skip(kind)
        return start, key, kind, content

    def skip_tensors(self, count: int) -> None:
        for _ in range(count):
            self._text()
            self.at += 4 + 8 * self.number("<I", self.at) + 12  # dimensions, type, offset
        self.number("<B", self.at - 1 if count else 0)

    def _text(self) -> bytes:
        end = self.at + 8 + self.number("<Q", self.at)
        text = self.data[self.at + 8 : end]
        if end > len(self.data):
            raise struct.error
        self.at = end
        return text

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            self._text()
        elif kind != _ARRAY:
            self.at += _SIZES[kind]
        else:
            element, length = self.number("<I", self.at), self.number("<Q", self.at + 4)
            self.at += 12
            if element == _STRING:
                self.at = skip_strings(self.data, self.at, length)
            else:
                self.at += length * _SIZES[element]

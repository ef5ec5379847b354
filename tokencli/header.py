"""A GGUF header as a value: metadata by key, tensors, checked access to both, and whether two vocabularies are compatible.
Knows the names and sizes of tensor types; knows no file, and of architectures only that their keys begin with their name.

World code reads headers (world/gguf_file.py), pure code takes them apart (plan/model_info.py).
"""

import mmap
import struct
from dataclasses import dataclass
from typing import Any

from tokencli.core import Vocabulary
from tokencli.errors import BadModelFile

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

STRING = 8  # the number of a metadata value's type
TOKENS = "tokenizer.ggml.tokens"
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS in llama-hparams.h; llama.cpp aborts above
MAX_PARTS = 0xFFFF
_MOST = 1 << 31

# What makes the vocabularies of a target and a draft compatible (common_speculative_are_compatible in common/speculative.cpp).
COMPARED_FROM = 5  # the tokens before may differ
MOST_PADDING = 128
# Where the file says nothing, llama.cpp adds a beginning-of-text token for these types and pre-tokenizers (llama-vocab.cpp).
_TYPES_WITH_BOS = ("llama", "bert", "gemma4")
_PRES_WITH_BOS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
                  "tekken", "chameleon")  # fmt: skip

Bytes = bytes | mmap.mmap  # a file's, however it was read


@dataclass(frozen=True, slots=True)
class Array:
    """A metadata array: its element type, length, and the bytes it lies in; values are kept only of short ones of numbers."""

    element_type: int
    length: int
    offset: int
    end: int
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
    """A whole header: metadata by key, tensors in file order, where the tensor data begins, the file's size and name.

    Of a model in several parts: tensors and size of all, the rest of the first. `fingerprint` is of the token texts from
    id 5 up, None where the header has none.
    """

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_bytes: int
    name: str
    fingerprint: str | None = None

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

    @property
    def part(self) -> tuple[int, int] | None:
        """Which part of how many this is of a split model, from 1; None of a whole one. Raises BadModelFile."""
        count = self._checked("split.count", MAX_PARTS)
        return None if count is None or count < 2 else ((self._checked("split.no", MAX_PARTS) or 0) + 1, count)

    @property
    def vocabulary(self) -> Vocabulary:
        """What the header says of its tokens, no default filled in. Raises BadModelFile."""
        size = self._vocabulary_size()
        ids = [self._checked(f"tokenizer.ggml.{which}_token_id", _MOST << 1) for which in ("bos", "eos")]
        # an id outside the vocabulary counts as not given (llama_vocab::impl::load, special tokens): some files write -1
        bos, eos = (None if given is None or given >= size else given for given in ids)
        return Vocabulary(
            size=size,
            type=self.text("tokenizer.ggml.model"),
            bos=bos,
            eos=eos,
            add_bos=self._flag("tokenizer.ggml.add_bos_token"),
            add_eos=self._flag("tokenizer.ggml.add_eos_token"),
            fingerprint=self.fingerprint,
        )

    def of_architecture(self, key: str) -> Any:
        """The value of `<architecture>.<key>`, None where absent."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def count(self, key: str, most: int = _MOST) -> int | None:
        """The number at `<architecture>.<key>`, None where absent. Raises BadModelFile where it is none from 0 to `most`."""
        return self._checked(f"{self.architecture}.{key}", most)

    def counts(self, key: str, layers: int, most: int = _MOST) -> tuple[int, ...] | None:
        """A number for each layer: an array of just so many, or one number for all (get_key_or_arr in llama-model-loader.cpp)."""
        given = self.of_architecture(key)
        if not isinstance(given, Array):
            same = self.count(key, most)
            return None if same is None else (same,) * layers
        if given.values is None or given.length != layers or not all(_is_count(each, most) for each in given.values):
            raise self._bad(key, f"is no array of {layers} counts up to {most:,}")
        return given.values

    def flags(self, key: str, at_least: int) -> tuple[bool, ...] | None:
        """An array of flags, written as booleans or numbers, None where there is no array. Raises BadModelFile if too short."""
        given = self.of_architecture(key)
        if not isinstance(given, Array):
            return None
        if given.values is None or not at_least <= given.length <= MAX_LAYERS:
            raise self._bad(key, f"is no array of {at_least} flags")
        return tuple(bool(each) for each in given.values)

    def text(self, key: str) -> str | None:
        """The text at a whole key, None where absent. Raises BadModelFile where it is something else."""
        given = self.metadata.get(key)
        if given is not None and not isinstance(given, str):
            raise self._bad(key, "is not a text")
        return given

    def _vocabulary_size(self) -> int:
        tokens = self.metadata.get(TOKENS)
        if tokens is None:
            embedding = next((tensor for tensor in self.tensors if tensor.name == "token_embd.weight"), None)
            return self.count("vocab_size") or (embedding.shape[-1] if embedding else 0)
        if not isinstance(tokens, Array) or tokens.element_type != STRING:
            raise self._bad(TOKENS, "is no array of texts")
        return tokens.length

    def _checked(self, key: str, most: int) -> int | None:
        given = self.metadata.get(key)
        if given is not None and not _is_count(given, most):
            raise self._bad(key, f"is {_shown(given)}, which is no count up to {most:,}")
        return given

    def _flag(self, key: str) -> bool | None:
        given = self.metadata.get(key)
        if given is not None and not isinstance(given, bool):
            raise self._bad(key, f"is {_shown(given)}, neither true nor false")
        return given

    def _bad(self, key: str, what: str) -> BadModelFile:
        return BadModelFile(f"{self.name} has a damaged header: {key} {what}", "download it again")


def _is_count(given: object, most: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= most


def _shown(given: object) -> str:
    return "an array" if isinstance(given, Array) else repr(given)[:40]


def difference_of_vocabularies(one: Header, data: Bytes, other: Header, other_data: Bytes) -> str | None:
    """Why a draft with one vocabulary cannot serve a model with the other; None where it can (reports A4-05 to A4-07).

    Compatible: the same type, the same bos and eos where both name them, added alike, sizes within 128, the same texts of
    all ids from 5 up that both have, compared in the files' bytes. The pre-tokenizer does not matter: a draft gets token
    ids, never text. Raises BadModelFile.
    """
    return _difference_of_rules(one, other) or _difference_of_texts(
        data, one.metadata.get(TOKENS), other_data, other.metadata.get(TOKENS)
    )


def _difference_of_rules(one: Header, other: Header) -> str | None:
    ours, theirs = one.vocabulary, other.vocabulary
    if ours.type != theirs.type:
        return f"its type is {ours.type} in one and {theirs.type} in the other"
    if abs(ours.size - theirs.size) > MOST_PADDING:
        return f"there are {ours.size:,} tokens in one and {theirs.size:,} in the other"
    for name, our_id, their_id in (("beginning", ours.bos, theirs.bos), ("end", ours.eos, theirs.eos)):
        if our_id != their_id and our_id is not None and their_id is not None:
            return f"the {name}-of-text token is {our_id} in one and {their_id} in the other"
    for name, we_add, they_add in zip(("beginning", "end"), _added(one), _added(other), strict=True):
        if we_add != they_add:
            return f"the {name}-of-text token is added to a prompt in one, not in the other"
    return None


def _added(header: Header) -> tuple[bool, bool]:
    """Whether llama.cpp adds a beginning-of-text and an end-of-text token (llama_vocab::impl::load in llama-vocab.cpp)."""
    vocabulary = header.vocabulary
    bos = vocabulary.type in _TYPES_WITH_BOS or header.text("tokenizer.ggml.pre") in _PRES_WITH_BOS
    if vocabulary.add_bos is not None and vocabulary.type != "gemma4":
        bos = vocabulary.add_bos
    return bos, vocabulary.type == "t5" if vocabulary.add_eos is None else vocabulary.add_eos


def _difference_of_texts(data: Bytes, tokens: object, other_data: Bytes, other_tokens: object) -> str | None:
    if not isinstance(tokens, Array) or not isinstance(other_tokens, Array):
        return "the texts of the tokens are not in both files"
    count = min(tokens.length, other_tokens.length)
    if count <= COMPARED_FROM:
        return None
    at, other_at = skip_strings(data, tokens.offset, COMPARED_FROM), skip_strings(other_data, other_tokens.offset, COMPARED_FROM)
    size = tokens.end - at if tokens.length == count else other_tokens.end - other_at
    if data[at : at + size] == other_data[other_at : other_at + size]:  # each text stands after its length: no mix-up
        return None
    for token in range(COMPARED_FROM, count):
        text, other_text = _string_at(data, at), _string_at(other_data, other_at)
        if text != other_text:
            return f"token {token} is {_shown_text(text)} in one and {_shown_text(other_text)} in the other"
        at, other_at = at + 8 + len(text), other_at + 8 + len(other_text)
    return None


def skip_strings(data: Bytes, at: int, count: int) -> int:
    """Where the bytes after `count` strings begin: the hot loop of a large vocabulary. May end outside of damaged data."""
    unpack = struct.Struct("<Q").unpack_from
    for _ in range(count):
        at += 8 + unpack(data, at)[0]
    return at


def _string_at(data: Bytes, at: int) -> bytes:
    (size,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + size]


def _shown_text(raw: bytes) -> str:
    return repr(raw[:80].decode("utf-8", "replace"))

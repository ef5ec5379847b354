"""What a GGUF header tells, and every file that llama.cpp should never see: refused, with what to do, before it costs memory."""

import random
import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.gguf_bytes import METADATA, Q4_0, gguf, string, value
from tokencli.core import Model
from tokencli.errors import BadModelFile, ModelNotFound
from tokencli.world.gguf_file import Array, Header, Tensor, parse_header, read_header, read_model

WHOLE = gguf()
DATA = 384  # where the tensors of WHOLE begin
STRINGS, U32, U64, F32, I32 = 8, 4, 10, 6, 5  # value types


def parsed(raw: bytes) -> Header:
    return parse_header(raw, len(raw), "m.gguf")


def refusal(raw: bytes) -> BadModelFile:
    """The error of a file that must be refused: it names the file and says what to do."""
    with pytest.raises(BadModelFile) as caught:
        parsed(raw)
    assert caught.value.what.startswith("m.gguf")
    assert caught.value.hint
    assert caught.value.exit_code == 4
    return caught.value


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[bytes], Path]:
    def save(raw: bytes) -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(raw)
        return path

    return save


# What a good file tells


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_tells_its_metadata_and_where_each_tensor_lies(version: int) -> None:
    header = parsed(gguf(version=struct.pack("<I", version)))
    assert header.tensors == (
        Tensor("token_embd.weight", (32, 4), "Q4_0", 0, 4 * 18),
        Tensor("output.weight", (64, 3), "Q8_0", 96, 6 * 34),
    )
    assert (header.data_offset, header.file_bytes) == (DATA, len(WHOLE))
    assert (header.architecture, header.of_architecture("block_count"), header.of_architecture("x")) == ("llama", 2, None)


def test_every_type_of_value_is_read() -> None:
    values = {"s": "你好", "b": True, "u": 7, "f": 0.5, "i": [1, -2, 3], "u64": struct.pack("<IQ", U64, 1 << 40)}
    metadata = parsed(gguf({**METADATA, **values})).metadata
    assert [metadata[key] for key in ("s", "b", "u", "f", "u64")] == ["你好", True, 7, 0.5, 1 << 40]
    assert metadata["i"].values == (1, -2, 3)


def test_of_long_arrays_and_of_strings_only_the_place_is_kept() -> None:
    header = parsed(gguf({**METADATA, "long": list(range(5000))}))
    tokens, numbers = header.metadata["tokenizer.ggml.tokens"], header.metadata["long"]
    assert (tokens.element_type, tokens.length, tokens.values) == (STRINGS, 3, None)
    assert (numbers.element_type, numbers.length, numbers.values) == (I32, 5000, None)
    assert gguf({**METADATA, "long": list(range(5000))})[numbers.offset :].startswith(struct.pack("<3i", 0, 1, 2))


def test_a_vocabulary_is_stepped_over_and_never_turned_into_objects() -> None:
    raw = gguf({**METADATA, "tokenizer.ggml.tokens": ["token"] * 50_000})
    tracemalloc.start()
    parsed(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_alignment_is_the_files_own(alignment: int) -> None:
    header = parsed(gguf({**METADATA, "general.alignment": alignment}, alignment=alignment))
    assert header.data_offset % alignment == 0
    assert header.tensors[1].offset == max(72, alignment) if alignment != 64 else 128


@pytest.mark.parametrize(
    ("file_type", "quant"), [({"general.file_type": 15}, "Q4_K_M"), ({"general.file_type": 999}, "Q8_0"), ({}, "Q8_0")]
)
def test_the_quant_is_named_by_the_file_type_else_by_what_holds_the_most_bytes(file_type: dict, quant: str) -> None:
    metadata = {key: each for key, each in METADATA.items() if key != "general.file_type"}
    assert parsed(gguf({**metadata, **file_type})).quant == quant


def test_a_model_is_what_a_plan_needs_to_know(saved: Callable[[bytes], Path]) -> None:
    path = saved(WHOLE)
    assert read_model(path, "mine") == Model("mine", str(path), "Q4_0", "llama", len(WHOLE), layers=2, context_trained=128)
    assert read_model(saved(gguf({"general.architecture": "x", "x.block_count": 1})), "mine").context_trained is None


# What is no GGUF at all


@pytest.mark.parametrize(
    ("raw", "what", "hint"),
    [
        (b"<!DOCTYPE html><html>", "web page", "/resolve/"),
        (b"\n  <html lang='en'>", "web page", "/resolve/"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>", "web page", "/resolve/"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer", "git lfs pull"),
        (b"tjgg" + bytes(64), "old GGML", "GGUF"),
        (b"ggml" + bytes(64), "old GGML", "GGUF"),
        (b"FUGG" + bytes(64), "big-endian", "little-endian"),
        (b"GGUF" + struct.pack(">IQQ", 3, 2, 5), "big-endian", "little-endian"),
        (b"PK\x03\x04" + bytes(64), "not a GGUF", ".gguf"),
        (b"Not Found", "not a GGUF", ".gguf"),
        (b"GG", "not a GGUF", ".gguf"),
        (b"GGUF" + struct.pack("<I", 1) + WHOLE[8:], "version 1", "newer file"),
        (b"GGUF" + struct.pack("<I", 99) + WHOLE[8:], "version 99", "update"),
    ],
)
def test_other_files_are_called_what_they_are(saved: Callable[[bytes], Path], raw: bytes, what: str, hint: str) -> None:
    with pytest.raises(BadModelFile, match=what) as caught:
        read_header(saved(raw))
    assert hint in caught.value.hint


def test_what_is_no_file_is_told_apart(tmp_path: Path, saved: Callable[[bytes], Path]) -> None:
    with pytest.raises(BadModelFile, match="is a folder"):
        read_header(tmp_path)
    with pytest.raises(BadModelFile, match="is empty"):
        read_header(saved(b""))
    with pytest.raises(ModelNotFound, match=r"no file .*other\.gguf"):
        read_header(tmp_path / "other.gguf")
    with pytest.raises(BadModelFile, match="cannot be read"):
        read_header(saved(WHOLE) / "inside.gguf")


# What is a part of a GGUF, or a damaged one


def test_a_header_cut_at_any_byte_is_refused() -> None:
    assert {"cut short" in refusal(WHOLE[:length]).what for length in range(4, DATA + 1)} == {True}


@pytest.mark.parametrize("missing", [1, 100, len(WHOLE) - DATA])
def test_a_file_without_all_its_tensors_is_refused_with_the_missing_size(missing: int) -> None:
    what = refusal(WHOLE[: len(WHOLE) - missing]).what
    assert f"{len(WHOLE) - missing:,} of at least {len(WHOLE):,}" in what


def test_padding_after_the_last_tensor_may_be_there_or_not() -> None:
    assert parsed(WHOLE + bytes(4096)).file_bytes == len(WHOLE) + 4096


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (gguf(tensor_count=1 << 40), "tensors"),
        (gguf(tensor_count=(1 << 64) - 1), "tensors"),
        (gguf(key_count=1 << 40), "metadata keys"),
        (gguf(key_count=6), ""),
        (gguf(tensor_count=3), ""),
        (gguf({**METADATA, "x": struct.pack("<I", 13)}), "unknown type 13"),
        (gguf({**METADATA, "x": struct.pack("<IIQ", 9, 9, 1)}), "unknown type 9"),
        (gguf({**METADATA, "general.alignment": 0}), "alignment"),
        (gguf({**METADATA, "general.alignment": 48}), "alignment"),
        (gguf({**METADATA, "general.alignment": 1 << 30}), "alignment"),
        (gguf({**METADATA, "general.alignment": "32"}), "alignment"),
        (gguf({**METADATA, "general.architecture": 7}), "no architecture"),
        (gguf({"llama.block_count": 2}), "no architecture"),
        (gguf(tensors=()), "no weights"),
        (gguf({**METADATA, "split.count": 3}, tensors=()), "split"),
        (gguf(tensors=(("t", (33,), Q4_0),)), "impossible shape"),
        (gguf(tensors=(("t", (1, 1, 1, 1, 1), 0),)), "dimensions"),
        (gguf(tensors=(("t", (), 0),)), "empty"),
        (gguf(tensors=(("t", (32, 0), 0),)), "empty"),
        (gguf(tensors=(("t", (8,), 200),)), "type 200"),
        (gguf(tensors=(("t", (8,), 4),)), "type 4"),
    ],
)
def test_a_damaged_header_is_refused(damaged: bytes, what: str) -> None:
    assert what in refusal(damaged).what


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 47, 2), (1 << 48,)])
def test_an_absurd_shape_is_refused(shape: tuple[int, ...]) -> None:
    small = (7, 5)[: len(shape)]
    dimensions = f"<{len(shape)}Q"
    damaged = gguf(tensors=[("t", small, 0)]).replace(struct.pack(dimensions, *small), struct.pack(dimensions, *shape))
    assert "impossible shape" in refusal(damaged).what


@pytest.mark.parametrize(
    "offsets", [(0, 0), (0, 64), (0, 128), (0, 95), (32, 128)], ids=["the same", "overlap", "gap", "odd", "late start"]
)
def test_tensors_stand_one_after_the_other(offsets: tuple[int, int]) -> None:
    assert "another engine or another layout" in refusal(gguf(offsets=offsets)).hint


def test_a_later_part_of_a_split_model_asks_for_the_first() -> None:
    assert "first part" in refusal(gguf({"split.no": 1, "split.count": 2, "split.tensors.count": 4})).hint


@pytest.mark.parametrize(
    "metadata",
    [
        {"general.architecture": "clip", "clip.vision.block_count": 24},
        {"general.architecture": "llama", "adapter.type": "lora"},
        {"general.architecture": "llama", "llama.block_count": 0},
        {"general.architecture": "llama", "llama.block_count": 1 << 31},
        {"general.architecture": "llama", "llama.block_count": "many"},
        {"general.architecture": "llama", "llama.block_count": True},
        {"general.architecture": "llama", "llama.block_count": [2, 2]},
    ],
    ids=["projector", "adapter", "none", "too many", "text", "bool", "array"],
)
def test_what_is_not_a_language_model_is_refused(saved: Callable[[bytes], Path], metadata: dict) -> None:
    with pytest.raises(BadModelFile, match="not a language model") as caught:
        read_model(saved(gguf(metadata)), "m")
    assert "the model's own file" in caught.value.hint


# What would cost memory or time


@pytest.mark.parametrize("claimed", [10, 1 << 20, (64 << 20) - 1, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("kind", ["string", "key", "tensor name", "strings", "string in array", "numbers"])
def test_a_claimed_length_allocates_nothing(kind: str, claimed: int) -> None:
    size = struct.pack("<Q", claimed)
    raw = {
        "string": gguf({"general.architecture": struct.pack("<I", STRINGS) + size}, ()),
        "key": gguf({}, (), key_count=1)[:24] + size,
        "tensor name": gguf({}, (), tensor_count=1)[:24] + size,
        "strings": gguf({"x": struct.pack("<II", 9, STRINGS) + size}, ()),
        "string in array": gguf({"x": struct.pack("<IIQ", 9, STRINGS, 2) + size}, ()),
        "numbers": gguf({"x": struct.pack("<II", 9, U64) + size}, ()),
    }[kind]
    tracemalloc.start()
    assert re.search("cut short|claims", refusal(raw).what)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_file_damaged_anywhere_is_read_or_refused_and_quickly() -> None:
    """2,000 headers with up to four bytes or words changed: never another error, and never a hang."""
    dice = random.Random(20_240_601)
    whole = gguf({**METADATA, "text": "x", "numbers": [1, 2], "flag": True, "general.alignment": 32})
    words = [struct.pack("<Q", word) for word in (0, 1, 8, 9, 255, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)]
    for _ in range(2000):
        raw = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            change = dice.choice([bytes([dice.randrange(256)]), dice.choice(words), dice.choice(words)[:4]])
            at = dice.randrange(4, DATA)
            raw[at : at + len(change)] = change
        start = time.perf_counter()
        assert quant_or_hint(bytes(raw))
        assert time.perf_counter() - start < 1


def quant_or_hint(raw: bytes) -> str:
    try:
        return parsed(raw).quant
    except BadModelFile as error:
        return error.hint


def test_values_of_every_type_can_stand_anywhere(saved: Callable[[bytes], Path]) -> None:
    """Known keys with values of a wrong type are refused or left out, never an error of ours."""
    for key in ("general.file_type", "llama.context_length", "llama.block_count", "split.count", "general.alignment"):
        for wrong in ("text", [1], ["a"], 0.5, True, struct.pack("<If", F32, float("nan"))):
            try:
                model = read_model(saved(gguf({**METADATA, key: wrong})), "m")
            except BadModelFile:
                continue
            assert model.quant
            assert model.context_trained in (128, None)


def test_an_array_is_a_value_like_any_other() -> None:
    assert isinstance(parsed(gguf({**METADATA, "general.file_type": [1]})).metadata["general.file_type"], Array)
    assert string("a") in value(["a"])

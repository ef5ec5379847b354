"""Models in several files: read as one from the first part, and every way in which the parts are not all there."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.gguf_bytes import METADATA, Q4_0, Q8_0, gguf
from tokencli.errors import BadModelFile, ModelNotFound
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header, read_header, read_model

PARTS = (
    [("token_embd.weight", (32, 3), Q4_0)],
    [("blk.0.attn_q.weight", (32, 2), Q8_0), ("blk.0.attn_k.weight", (32, 1), Q8_0)],
    [("blk.1.attn_q.weight", (32, 2), Q8_0), ("output.weight", (32, 3), Q8_0)],
)
LLAMA = METADATA | {"llama.embedding_length": 64, "llama.attention.head_count": 2}

Write = Callable[..., Path]


def short(number: int) -> bytes:
    return struct.pack("<IH", 2, number)  # gguf-split writes 16 bits


def part(number: int, tensors: list, *, count: int = 3, total: int = 5, metadata: dict | None = None) -> bytes:
    """As llama-gguf-split makes them: only the first part has the model's metadata."""
    own = (LLAMA if number == 0 else {}) if metadata is None else metadata
    return gguf(own | {"split.no": short(number), "split.count": short(count), "split.tensors.count": total}, tensors)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the parts and gives the path of the first; `changes` replace the bytes of a part, None leaves it out."""

    def write(changes: dict[int, bytes | None] | None = None, name: str = "model-{:05d}-of-00003.gguf") -> Path:
        for number, tensors in enumerate(PARTS):
            raw = (changes or {}).get(number, part(number, tensors))
            if raw is not None:
                (tmp_path / name.format(number + 1)).write_bytes(raw)
        return tmp_path / name.format(1)

    return write


def refusal(path: Path) -> BadModelFile:
    with pytest.raises(BadModelFile) as caught:
        read_header(path)
    return caught.value


def test_the_parts_are_read_as_one_model(write: Write) -> None:
    first = write()
    header = read_header(first)
    assert [tensor.name for tensor in header.tensors] == [name for tensors in PARTS for name, _, _ in tensors]
    assert header.file_bytes == sum(len(part(number, tensors)) for number, tensors in enumerate(PARTS))
    assert read_model(first, "m").bytes == header.file_bytes
    info = model_info(header)
    assert info.shard == (1, 3)
    assert (info.input_bytes, info.block_bytes, info.output_bytes) == (54, (102, 68), 102)


def test_the_first_part_may_hold_only_the_metadata(write: Write) -> None:
    first = write({0: part(0, [], total=4)})
    assert len(read_header(first).tensors) == 4


def test_one_part_alone_is_a_whole_model(write: Write, tmp_path: Path) -> None:
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(part(0, PARTS[0], count=1, total=1))
    assert model_info(read_header(alone)).shard is None


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_part_is_named(write: Write, number: int) -> None:
    error = refusal(write({number: None}))
    assert f"model-{number + 1:05d}-of-00003.gguf is missing: the model comes in 3 parts" in error.what
    assert "one folder" in error.hint


@pytest.mark.parametrize("number", [2, 3])
def test_a_later_part_asks_for_the_first(write: Write, number: int) -> None:
    error = refusal(write().with_name(f"model-{number:05d}-of-00003.gguf"))
    assert f"is part {number} of 3" in error.what
    assert "first part" in error.hint
    assert "-00001-of-00003.gguf" in error.hint


@pytest.mark.parametrize("name", ["model-{}-of-3.gguf", "part{}.gguf", "model-{:05d}-of-00004.gguf"])
def test_parts_that_were_renamed_are_not_found_by_llama_cpp_either(write: Write, name: str) -> None:
    error = refusal(write(name=name))
    assert "does not end in -00001-of-00003.gguf" in error.what
    assert "names" in error.hint


def test_a_damaged_part_is_named(write: Write) -> None:
    whole = part(1, PARTS[1])
    for raw in (whole[:-1], whole[:100], b"", b"<html>"):
        assert "model-00002-of-00003.gguf" in refusal(write({1: raw})).what


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({1: part(2, PARTS[1])}, "is not part 2 of 3"),
        ({1: part(1, PARTS[1], count=4)}, "is not part 2 of 3"),
        ({1: gguf(LLAMA, PARTS[1])}, "is not part 2 of 3"),
        ({2: part(2, PARTS[1])}, "a tensor twice"),
        ({2: part(2, PARTS[2][:1])}, "do not belong together"),
        ({0: part(0, PARTS[0], metadata={})}, "no architecture"),
        ({0: gguf(LLAMA | {"split.no": "x", "split.count": 3}, PARTS[0])}, "split.no is 'x'"),
        ({0: gguf(LLAMA | {"split.count": 1 << 31}, PARTS[0])}, "split.count"),
        ({0: part(0, PARTS[0], count=0xFFFF)}, "-00001-of-65535.gguf"),
    ],
)
def test_parts_that_are_not_of_one_model_are_refused(write: Write, changes: dict[int, bytes], what: str) -> None:
    assert what in refusal(write(changes)).what


def test_parts_without_any_tensor_are_no_model(write: Write) -> None:
    assert "no weights" in refusal(write({number: part(number, [], total=0) for number in range(3)})).what


def test_a_part_in_memory_is_not_a_model() -> None:
    raw = part(0, PARTS[0])
    with pytest.raises(BadModelFile, match="first of 3 parts"):
        parse_header(raw, len(raw), "m.gguf")


def test_no_file_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_header(tmp_path / "model-00001-of-00003.gguf")

"""Ghost files: llama.cpp plans with one as with the model itself, they cost next to no disk, and none is left behind."""

import dataclasses
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import zoo, zoo_cases
from tests.engine.conftest import plan_for
from tests.unit.gguf_bytes import gguf, value
from tests.zoo_measure import Case
from tokencli.core import Model
from tokencli.engine.client import Engine
from tokencli.errors import BadModelFile, ModelNotFound, TokencliError
from tokencli.listing import parts_of
from tokencli.plan.model_info import model_info
from tokencli.world import ghost as ghost_room
from tokencli.world.gguf_file import parse_header, read_header
from tokencli.world.ghost import Ghosts, Part

QWEN_TOKENS = 151_936


def info_of(path: Path) -> object:
    """All that the header says but of the tokens' texts, which are gone, and of the file's size, which shrinks with them."""
    info = model_info(read_header(path))
    vocabulary = dataclasses.replace(info.vocabulary, type=None, fingerprint=None)
    return dataclasses.replace(info, vocabulary=vocabulary, chat_template=None, file_bytes=0)


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid", "experts"])
def test_a_dry_run_says_the_same_of_the_ghost(tiny: Callable[..., Model], tmp_path: Path, kind: str) -> None:
    model = tiny(kind, vocab_size=1024)
    with Ghosts(tmp_path) as ghosts, Engine() as engine:
        ghost = ghosts.of_file(Path(model.file))
        whole = engine.dry_run(plan_for(model))
        assert engine.dry_run(plan_for(dataclasses.replace(model, file=str(ghost)))) == whole
        assert "compute" in repr(whole)
        assert info_of(ghost) == info_of(Path(model.file))


def test_smollm2_and_its_ghost(smollm2: Model, tmp_path: Path) -> None:
    with Ghosts(tmp_path) as ghosts, Engine() as engine:
        ghost = ghosts.of_file(Path(smollm2.file))
        assert ghost.stat().st_blocks * 512 < 100_000 < ghost.stat().st_size
        assert info_of(ghost) == info_of(Path(smollm2.file))
        assert engine.dry_run(plan_for(dataclasses.replace(smollm2, file=str(ghost)))) == engine.dry_run(plan_for(smollm2))


def test_the_first_bytes_of_a_file_are_enough(tmp_path: Path) -> None:
    """As a hub sends them: the header with all its tokens, and how large the file is."""
    part = zoo.header("qwen3-8b", QWEN_TOKENS)
    with Ghosts(tmp_path) as ghosts:
        thin = ghosts.of("qwen3-8b", [part])
        assert thin.stat().st_size > 4 << 30
        assert thin.stat().st_blocks * 512 < 100_000
        assert read_header(thin).vocabulary.size == QWEN_TOKENS
        without = ghosts.of("qwen3-8b", [zoo.header("qwen3-8b")])
        one, other = zoo_cases.ask([Case(str(file), 4096) for file in (thin, without)])
        assert one == other
        assert not isinstance(one, str)


def test_metadata_that_is_no_token_stays_as_it_was(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 32,
        "llama.attention.head_count": 2,
        "llama.vocab_size": 7,  # wrong, as in some files: the tokens count
        "general.alignment": 64,
        "llama.rope.scaling.factor": 8.0,
        "llama.some.list": [1, 2, 3],
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.scores": value([0, 0, 0]),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    raw = gguf(metadata, [("token_embd.weight", (32, 3), 8)], alignment=64)
    with Ghosts(tmp_path) as ghosts:
        ghost = read_header(ghosts.of("m", [Part(raw, len(raw))]))
    kept = {key: each for key, each in ghost.metadata.items() if not key.startswith("llama.some")}
    assert kept == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 32,
        "llama.attention.head_count": 2,
        "llama.vocab_size": 3,
        "general.alignment": 64,
        "llama.rope.scaling.factor": 8.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.model": "none",
    }
    assert ghost.metadata["llama.some.list"].values == (1, 2, 3)
    assert ghost.data_offset % 64 == 0
    assert ghost.tensors == parse_header(raw, len(raw), "m").tensors


def test_a_model_in_parts(smollm2: Model, tmp_path: Path) -> None:
    """Two files named as llama.cpp wants them; a dry run finds the second from the first."""
    first, second = split_in_two(Path(smollm2.file), tmp_path)
    assert parts_of(first.name) == [first.name, second.name]
    with Ghosts(tmp_path) as ghosts, Engine() as engine:
        ghost = ghosts.of_file(first)
        assert [name.partition("-")[2] for name in parts_of(ghost.name)] == ["00001-of-00002.gguf", "00002-of-00002.gguf"]
        whole = engine.dry_run(plan_for(smollm2))
        assert engine.dry_run(plan_for(dataclasses.replace(smollm2, file=str(ghost)))) == whole


def split_in_two(path: Path, folder: Path) -> tuple[Path, Path]:
    """A model's headers as if its last tensors were in a second file; the weights are holes."""
    header, data = read_header(path), path.read_bytes()
    cut = next(tensor.offset for tensor in header.tensors if tensor.name.startswith("blk.20."))
    count = len(header.tensors)
    part_keys = {"split.count": struct.pack("<IH", 2, 2), "split.tensors.count": struct.pack("<Ii", 5, count)}
    halves = [[each for each in header.tensors if (each.offset >= cut) == late] for late in (False, True)]
    files = []
    for number, tensors in enumerate(halves):
        keys = part_keys | {"split.no": struct.pack("<IH", 2, number)}
        entries = b"".join(struct.pack("<Q", len(key)) + key.encode() + each for key, each in keys.items())
        own = data[24 : _end_of_metadata(data)] if number == 0 else b""
        key_count = struct.unpack_from("<Q", data, 16)[0] if number == 0 else 0
        raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), key_count + len(keys)) + own + entries
        for tensor in tensors:
            raw += struct.pack("<Q", len(tensor.name)) + tensor.name.encode()
            raw += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
            raw += struct.pack("<IQ", _TYPE_IDS[tensor.type], tensor.offset - (cut if number else 0))
        raw += bytes(-len(raw) % 32)
        file = folder / f"model-{number + 1:05d}-of-00002.gguf"
        file.write_bytes(raw)
        with file.open("r+b") as opened:
            opened.truncate(len(raw) + (header.file_bytes - header.data_offset - cut if number else cut))
        files.append(file)
    return files[0], files[1]


_TYPE_IDS = {"F32": 0, "Q4_1": 3, "Q8_0": 8, "Q6_K": 14, "Q5_1": 7, "F16": 1}


def _end_of_metadata(data: bytes) -> int:
    """Where the tensor infos begin: the first tensor's name with its length before it."""
    name = parse_header(data, len(data), "x").tensors[0].name.encode()
    return data.index(struct.pack("<Q", len(name)) + name + struct.pack("<I", 2))


# Never left behind


def left(folder: Path) -> list[Path]:
    return [each for each in (folder / "ghosts").iterdir() if each.is_dir()]


def test_ghosts_go_with_their_block_and_with_an_error(tmp_path: Path) -> None:
    with Ghosts(tmp_path) as ghosts:
        ghost = ghosts.of("m", [zoo.header("smollm2-135m")])
        assert ghosts.of("another name", [zoo.header("smollm2-135m")]) == ghost  # by content
        larger = dataclasses.replace(zoo.header("smollm2-135m"), file_bytes=1 << 30)
        assert ghosts.of("m", [larger]) != ghost
        assert ghost.exists()
    assert left(tmp_path) == []
    with pytest.raises(ZeroDivisionError):
        _fail_inside(tmp_path)
    assert left(tmp_path) == []


def _fail_inside(folder: Path) -> None:
    with Ghosts(folder) as ghosts:
        ghosts.of("m", [zoo.header("smollm2-135m")])
        raise ZeroDivisionError


_HOLDS_ONE = """
import sys, time
from pathlib import Path
from tests import zoo
from tokencli.world.ghost import Ghosts
with Ghosts(Path(sys.argv[1])) as ghosts:
    print(ghosts.of("m", [zoo.header("smollm2-135m")]), flush=True)
    time.sleep(60)
"""


def test_those_of_a_killed_process_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDS_ONE, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        theirs = Path(other.stdout.readline().strip())
        with Ghosts(tmp_path) as ghosts:
            assert ghosts.of("m", [zoo.header("smollm2-135m")]) != theirs
            assert theirs.exists()
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert theirs.exists()
    with Ghosts(tmp_path):
        assert not theirs.exists()
    assert left(tmp_path) == []


def test_a_header_is_read_once_until_its_file_changes(smollm2: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner asks for a dozen dry runs of one file; stepping over 150,000 tokens takes longer than any of them."""
    read: list[str] = []
    thin = ghost_room._thin
    monkeypatch.setattr(ghost_room, "_thin", lambda part, name: read.append(name) or thin(part, name))
    path = tmp_path / "model.gguf"
    path.symlink_to(smollm2.file)
    with Ghosts(tmp_path) as ghosts:
        one = ghosts.of_file(path)
    with Ghosts(tmp_path) as ghosts:
        assert ghosts.of_file(path).name == one.name
        assert read == ["model.gguf"]
        path.unlink()
        part = zoo.header("smollm2-135m")
        path.write_bytes(part.data)
        assert ghosts.of_file(path).name != one.name
        path.unlink()
        with pytest.raises(ModelNotFound):
            ghosts.of_file(path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    part = zoo.header("smollm2-135m")
    with Ghosts(tmp_path) as ghosts:
        with pytest.raises(ModelNotFound):
            ghosts.of_file(tmp_path / "none.gguf")
        with pytest.raises(BadModelFile, match="cut short"):
            ghosts.of("m", [Part(part.data[: len(part.data) // 2], part.file_bytes)])
        (tmp_path / "empty.gguf").touch()
        with pytest.raises(BadModelFile, match="cannot be read"):
            ghosts.of_file(tmp_path / "empty.gguf")


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ghosts").write_text("a file where the folder should be")
    with pytest.raises(TokencliError, match="cannot be used"), Ghosts(tmp_path):
        pass

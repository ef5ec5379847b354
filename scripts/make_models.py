"""Makes the models that speculation is measured with, from the demo model, in the user's cache folder, and prints their paths.

The target repeats SmolLM2's 30 blocks four times; the repeated ones add nothing to the residual stream, so it says what
SmolLM2 says at four times the cost, and in F16, where checking several tokens costs little more than one (FACTS, Speed).
With `--quants` others, to measure losses with.
"""

import contextlib
import ctypes
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import platformdirs
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from install import say
from llama_wheel import locked

from tokencli.world import catalogue

VERSION = 1  # raise it when what is written changes: models of another version are made anew
NEEDED_BYTES = 2_500_000_000
BLOCKS = 30
REPEATS = 4
LEFT_OUT = (24, 25, 26)
SILENCED = ("attn_output.weight", "ffn_down.weight")  # with these at zero a block adds nothing
F16, Q4_1, Q8_0 = 1, 3, 7  # llama_ftype
Q4_1_BLOCK, Q4_1_STEPS = 32, 15
QUALITY_BYTES = 1_000_000_000


class ModelsError(Exception):
    """Why the models cannot be made, in one line."""


@dataclass(frozen=True, slots=True)
class Paths:
    """`original` is a good draft for `target` (acceptance 0.8 to 1), `weak_draft` a poor one (0.07 to 0.66)."""

    target: Path
    weak_draft: Path
    original: Path


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the model to write: a copy of the source's block `source`, perhaps silenced."""

    source: int
    silenced: bool = False


@dataclass(frozen=True, slots=True)
class Quants:
    """One model in three quants, the latter two made from the first."""

    f16: Path
    q8_0: Path
    q4_1: Path


def models() -> Paths:
    """The models, made now where they are not there yet (seconds). Raises ModelsError."""
    original = _demo_model()
    folder = _folder("measuring", original)
    paths = Paths(folder / "target-f16.gguf", folder / "draft-27.gguf", original)
    if not (paths.target.exists() and paths.weak_draft.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", say):
            _make(paths)
    return paths


def quants() -> Quants:
    """The demo model as if it were not quantised yet, and quants of it. Raises ModelsError.

    Its Q4_1 weights, decoded, would be lossless in Q4_1 again: each is moved within its step, as the weights before were.
    """
    original = _demo_model()
    folder = _folder("quality", original)
    paths = Quants(folder / "smollm2-f16.gguf", folder / "smollm2-q8_0.gguf", folder / "smollm2-q4_1.gguf")
    if not all(path.exists() for path in astuple(paths)):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", say):
            _check_disk(folder, QUALITY_BYTES)
            with _written(paths.f16, "the demo model in F16") as partial:
                dither(original, partial)
            for path, kind in ((paths.q8_0, Q8_0), (paths.q4_1, Q4_1)):
                with _written(path, "a quant of it") as partial:
                    _quantize_apart(paths.f16, partial, kind)
    return paths


def _demo_model() -> Path:
    return catalogue.resolve("smollm2-135m", catalogue.read_catalogue(catalogue.data_folder()))


def _folder(purpose: str, original: Path) -> Path:
    return platformdirs.user_cache_path("tokencli") / "models" / f"{purpose}-{_digest(original)[:12]}-v{VERSION}"


def target_blocks() -> list[Block]:
    return [Block(index % BLOCKS, silenced=index >= BLOCKS) for index in range(BLOCKS * REPEATS)]


def weak_draft_blocks() -> list[Block]:
    return [Block(index) for index in range(BLOCKS) if index not in LEFT_OUT]


def _make(paths: Paths) -> None:
    _check_disk(paths.target.parent, NEEDED_BYTES)
    if not paths.weak_draft.exists():
        with _written(paths.weak_draft, "the weak draft, without three blocks") as partial:
            rebuild(paths.original, partial, weak_draft_blocks())
    if not paths.target.exists():
        padded = paths.target.with_name("padded-q4_1.gguf")
        with _written(padded, f"the target, {REPEATS * BLOCKS} blocks") as partial:
            rebuild(paths.original, partial, target_blocks())
        with _written(paths.target, "the target in F16") as partial:
            _quantize_apart(padded, partial, F16)
        padded.unlink()


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelsError(
            f"the measuring models need {needed / 1e9:.1f} GB free in {folder}, there are {free / 1e9:.1f}; "
            "make room, or set XDG_CACHE_HOME to a folder on another disk"
        )


@contextlib.contextmanager
def _written(path: Path, what: str) -> Iterator[Path]:
    """A path to write to, which takes its real name when all is well: a file of that name is always whole."""
    say(f"making {what} ...")
    start = time.monotonic()
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    say(f"made {path.name}, {path.stat().st_size / 1e6:.0f} MB, in {time.monotonic() - start:.0f} s")


def rebuild(source: Path, destination: Path, blocks: Sequence[Block]) -> None:
    """Write the model `source` with these blocks in place of its own; everything else stays."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(destination, architecture)
    for field in reader.fields.values():
        if field.name == f"{architecture}.block_count":
            writer.add_block_count(len(blocks))
        elif not field.name.startswith("GGUF.") and field.name != "general.architecture":
            element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for index, block in enumerate(blocks):
        prefix = f"blk.{block.source}."
        for tensor in (tensor for tensor in reader.tensors if tensor.name.startswith(prefix)):
            part = tensor.name.removeprefix(prefix)
            data = np.zeros_like(tensor.data) if block.silenced and part in SILENCED else tensor.data
            writer.add_tensor(f"blk.{index}.{part}", data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def dither(source: Path, destination: Path) -> None:
    """Write the model `source` in F16, each Q4_1 weight moved at random by up to half of its block's step, always the same."""
    reader, chance = GGUFReader(source), np.random.default_rng(1)
    writer = GGUFWriter(destination, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name == "general.file_type":
            writer.add_file_type(F16)
        elif not field.name.startswith("GGUF.") and field.name != "general.architecture":
            element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind != GGMLQuantizationType.F32:
            data = dequantize(data, kind)
        if kind == GGMLQuantizationType.Q4_1:
            blocks = data.reshape(-1, Q4_1_BLOCK)
            step = (blocks.max(axis=1, keepdims=True) - blocks.min(axis=1, keepdims=True)) / Q4_1_STEPS
            data = (blocks + (chance.random(blocks.shape, np.float32) - 0.5) * step).reshape(data.shape)
        writer.add_tensor(tensor.name, data if kind == GGMLQuantizationType.F32 else data.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantize_apart(source: Path, destination: Path, kind: int) -> None:
    """In a process of its own: native code may crash."""
    command = [sys.executable, __file__, "--quantize", str(source), str(destination), str(kind)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ModelsError(f"llama_model_quantize ended with {done.returncode}: {(lines or ['it said nothing'])[-1]}")


def _quantize(source: str, destination: str, kind: str) -> int:
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = int(kind), True
    return int(llama_cpp.llama_model_quantize(source.encode(), destination.encode(), ctypes.byref(parameters)))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--quantize"]:
        return _quantize(*arguments[1:])
    try:
        print(*astuple(quants() if arguments[:1] == ["--quants"] else models()), sep="\n")
    except ModelsError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the system keeps of a model's file in RAM after a load onto a device that has copied it (report A7-01)."""

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import LAVAPIPE
from tests.engine.conftest import answer, ask, load, plan_for
from tokencli.core import Model
from tokencli.engine.client import Engine
from tokencli.engine.pages import give_back

MIB = 1 << 20


def resident(file: Path) -> int:
    """Bytes of the file that are in RAM, as mincore tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), pages) == 0
        del start
        return mmap.PAGESIZE * sum(page & 1 for page in pages)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """4 MiB on the disk, all of it in RAM."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 4 * MIB)
    with path.open("rb+") as opened:
        os.fsync(opened.fileno())  # a page that is not written yet stays
        opened.read()
    if resident(path) < 4 * MIB:
        pytest.skip("NOT TESTED: this system does not tell which pages of a file it holds")
    return path


def test_pages_are_given_back(file: Path) -> None:
    give_back(file)
    assert resident(file) == 0


def test_all_parts_of_a_model_are(file: Path) -> None:
    first, second = (file.with_name(f"model-0000{number}-of-00002.gguf") for number in (1, 2))
    file.rename(second)
    first.write_bytes(b"")
    give_back(first)
    assert resident(second) == 0


def test_a_file_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    give_back(tmp_path / "gone.gguf")


@pytest.mark.vulkan
@pytest.mark.parametrize("load_mode", ["mmap", "none"])
def test_what_the_device_has_copied_is_in_ram_once(lavapipe: str, tiny: Callable[..., Model], load_mode: str) -> None:
    model = tiny("llama", layers=12, embedding=256, seed=77)
    file = Path(model.file)
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
    plan = plan_for(model, gpu_layers=13, device=lavapipe, context=256, load_mode=load_mode)
    held = {}
    for page_cache in (True, False):
        with Engine(environment=LAVAPIPE) as engine:
            _, device = load(engine, replace(plan, page_cache=page_cache)).devices
            held[page_cache] = resident(file)
            assert answer(engine.generate(ask("Hello", max_tokens=2)))[2].stats.tokens == 2
    assert held[True] == pytest.approx(file.stat().st_size, abs=mmap.PAGESIZE)
    assert device.weights > 5 * MIB
    assert held[False] <= file.stat().st_size - device.weights + MIB

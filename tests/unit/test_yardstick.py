"""Yardsticks: whole models to whoever reads their header, of one tensor type, and next to nothing on the disk."""

import dataclasses
from pathlib import Path

import pytest

from tokencli.errors import TokencliError
from tokencli.header import TENSOR_TYPES
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import read_header
from tokencli.world.yardstick import NARROW, WIDE, Yardsticks, layers_for

MIB = 1 << 20


@pytest.mark.parametrize("tensor_type", ["F16", "Q8_0", "Q4_1", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"])
@pytest.mark.parametrize("shape", [NARROW, dataclasses.replace(WIDE, layers=2)])
def test_a_yardstick_is_a_whole_model_of_one_type(tmp_path: Path, tensor_type: str, shape: object) -> None:
    with Yardsticks(tmp_path) as yardsticks:
        file = yardsticks.make(tensor_type, shape)  # type: ignore[arg-type]
        info = model_info(read_header(file))
        assert info.layers == shape.layers  # type: ignore[attr-defined]
        assert info.type_bytes[tensor_type] > 0.99 * sum(info.type_bytes.values())
        assert file.stat().st_size >= info.weight_bytes > 20 * MIB
        assert file.stat().st_blocks * 512 < MIB, "sparse"
    assert list(tmp_path.iterdir()) == []


def test_a_yardstick_is_as_large_as_asked_for_and_no_block_larger() -> None:
    sizes = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}
    for tensor_type in ("F16", "Q4_K"):
        elements, size = sizes[tensor_type]
        block = WIDE.block_weights // elements * size
        assert 160 * MIB <= layers_for(tensor_type, WIDE, 160 * MIB) * block < 160 * MIB + block


def test_a_folder_that_cannot_be_written_to_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TokencliError, match="cannot be used"), Yardsticks(tmp_path / "file"):
        pass

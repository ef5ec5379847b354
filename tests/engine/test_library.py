"""What the code says of the linked library, checked against the library."""

import ctypes
import re
import subprocess
import sys

import pytest

from tokencli.header import FILE_TYPES, TENSOR_TYPES


@pytest.mark.parametrize("type_id", TENSOR_TYPES)
def test_tensor_types_are_those_of_the_linked_ggml(type_id: int) -> None:
    from llama_cpp._ggml import libggml

    libggml.ggml_type_name.restype = ctypes.c_char_p
    libggml.ggml_blck_size.restype = ctypes.c_int64
    libggml.ggml_type_size.restype = ctypes.c_size_t
    name, block, size = TENSOR_TYPES[type_id]
    assert libggml.ggml_type_name(type_id).decode().upper() == name.upper()
    assert (libggml.ggml_blck_size(type_id), libggml.ggml_type_size(type_id)) == (block, size)


def test_file_types_are_those_of_the_linked_llama() -> None:
    import llama_cpp

    known = {
        value: re.sub(r"^LLAMA_FTYPE_(MOSTLY|ALL)_|_MOE$", "", name)
        for name, value in vars(llama_cpp).items()
        if re.match(r"LLAMA_FTYPE_(MOSTLY|ALL)_", name)
    }
    assert {key: name for key, name in FILE_TYPES.items() if key in known} == {
        key: name for key, name in known.items() if key in FILE_TYPES
    }
    assert set(known) - set(FILE_TYPES) <= {4, 5, 6, 33, 34, 35}, "removed layouts only"


@pytest.mark.parametrize("module", ["tokencli.app", "tokencli.cli.commands", "tokencli.engine.client"])
def test_heavy_libraries_load_only_when_needed(module: str) -> None:
    heavy = ("llama_cpp", "gguf", "huggingface_hub", "numpy", "pydantic", "rich")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

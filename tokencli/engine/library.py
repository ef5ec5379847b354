"""Imports llama-cpp-python and checks that it is the version this code was written for. Knows no model."""

import ctypes
import importlib.metadata
import re
from typing import Any

from tokencli.errors import EngineMissing

PACKAGE = "llama-cpp-python"
_HINT = "scripts/run installs the right one; or: pip install --force-reinstall {package}=={version}"


class GgmlParameters(ctypes.Structure):
    """ggml_init_params in ggml.h."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class DeviceCapabilities(ctypes.Structure):
    """ggml_backend_dev_caps in ggml-backend.h."""

    _fields_ = tuple(
        (name, ctypes.c_bool) for name in ("asynchronous", "host_buffer", "buffer_from_host_ptr", "events", "mmap_support")
    )


class DeviceProperties(ctypes.Structure):
    """ggml_backend_dev_props in ggml-backend.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", DeviceCapabilities),
    )


def load_library() -> Any:
    """The low-level module llama_cpp, its backends initialised. Raises EngineMissing with what to type."""
    check_version(_required_version(), _installed_version())
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineMissing(
            f"llama.cpp's library does not load: {_first_line(error)}",
            "install what is missing, or build for the CPU: TOKENCLI_BUILD=cpu scripts/run",
        ) from None
    return llama_cpp


def check_version(required: str, installed: str | None) -> None:
    """Raises EngineMissing unless the two are the same: struct layouts change between releases."""
    hint = _HINT.format(package=PACKAGE, version=required)
    if installed is None:
        raise EngineMissing(f"{PACKAGE} {required} is not installed", hint)
    if installed != required:
        raise EngineMissing(f"{PACKAGE} {installed} is installed, but tokencli needs exactly {required}", hint)


def logits_address(llama: Any) -> Any:
    """llama_get_logits_ith as a function (context, index) -> address: the binding's own makes a pointer object each time."""
    function = llama.llama_cpp._lib["llama_get_logits_ith"]
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    return function


def ggml() -> Any:
    """The ggml library behind llama_cpp, with the types of the device calls set."""
    from llama_cpp._ggml import libggml

    libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    libggml.ggml_backend_dev_name.restype = ctypes.c_char_p
    libggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    libggml.ggml_backend_dev_get_props.restype = None
    libggml.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.POINTER(DeviceProperties)]
    libggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_supports_op.restype = ctypes.c_bool
    libggml.ggml_backend_dev_supports_op.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    libggml.ggml_init.argtypes = [GgmlParameters]
    libggml.ggml_free.argtypes = [ctypes.c_void_p]
    libggml.ggml_new_tensor_2d.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    libggml.ggml_mul_mat.argtypes = [ctypes.c_void_p] * 3
    for name in ("ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat"):
        getattr(libggml, name).restype = ctypes.c_void_p
    return libggml


def _required_version() -> str:
    """The pin in our own package's metadata: written once, in pyproject.toml."""
    for requirement in importlib.metadata.requires("tokencli") or ():
        pin = re.match(rf"{PACKAGE}\s*==\s*([\w.]+)", requirement)
        if pin:
            return pin[1]
    raise EngineMissing("tokencli's own package metadata is incomplete", "install tokencli with pip, or run scripts/run")


def _installed_version() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]

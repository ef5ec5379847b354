"""The devices that the linked llama.cpp lists, as values, their native handles, and what llama.cpp is told of them.

Decides nothing about them.
"""

import ctypes
from typing import Any

from tokencli.core import Device, DeviceKind
from tokencli.engine.library import DeviceProperties, GgmlParameters, ggml

_KINDS: dict[int, DeviceKind] = {0: "cpu", 1: "gpu", 2: "integrated", 3: "accelerator"}
_F32, _F16 = 0, 1  # enum ggml_type
_ROW_BYTES = 64
_MOST_ROWS = 1 << 34  # 1 TiB
_TENSORS_SIZE = 1 << 14  # room for the descriptions of a few tensors


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override in llama.h; an array of them ends with an empty one."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def list_devices() -> list[Device]:
    """All devices, in llama.cpp's order. The CPU's memory is what the machine has in all: read what is free elsewhere."""
    library = ggml()
    return [_device(library, library.ggml_backend_dev_get(index)) for index in range(library.ggml_backend_dev_count())]


def handle(device_id: str) -> int | None:
    """The native handle of the device with llama.cpp's name `device_id`, None where there is none."""
    library = ggml()
    handles = (library.ggml_backend_dev_get(index) for index in range(library.ggml_backend_dev_count()))
    return next((each for each in handles if library.ggml_backend_dev_name(each).decode() == device_id), None)


def tensor_limit(device_id: str) -> int | None:
    """The largest matrix that the device multiplies with, in bytes to the row of 64; None where there is no limit to find.

    Vulkan devices have one (maxStorageBufferRange, 128 MiB to 4 GiB); asked as llama.cpp asks (weight_buft_supported).
    """
    device = handle(device_id)
    if device is None or _multiplies(device, _MOST_ROWS) or not _multiplies(device, 1):
        return None
    fits, too_large = 1, _MOST_ROWS
    while too_large - fits > 1:
        rows = (fits + too_large) // 2
        fits, too_large = (rows, too_large) if _multiplies(device, rows) else (fits, rows)
    return fits * _ROW_BYTES


def experts_on_cpu(blocks: int) -> Any:
    """`tensor_buft_overrides` for --cpu-moe: the experts of the first so many blocks. Keep it as long as the model.

    One pattern for all, as llama.cpp compiles each anew for every tensor.
    """
    numbers = "|".join(str(block) for block in range(blocks))
    pattern = rf"blk\.({numbers})\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode()  # LLM_FFN_EXPS_REGEX in common/common.h
    return (_Override * 2)(_Override(pattern, ggml().ggml_backend_cpu_buffer_type()), _Override(None, None))


def _multiplies(device: int, rows: int) -> bool:
    """Whether the device takes a matrix of so many rows of 32 F16 numbers; nothing is allocated."""
    library = ggml()
    context = library.ggml_init(GgmlParameters(_TENSORS_SIZE, None, True))
    matrix = library.ggml_new_tensor_2d(context, _F16, _ROW_BYTES // 2, rows)
    vector = library.ggml_new_tensor_2d(context, _F32, _ROW_BYTES // 2, 1)
    supported = library.ggml_backend_dev_supports_op(device, library.ggml_mul_mat(context, matrix, vector))
    library.ggml_free(context)
    return bool(supported)


def _device(library: Any, device: int) -> Device:
    found = DeviceProperties()
    library.ggml_backend_dev_get_props(device, ctypes.byref(found))
    return Device(
        id=found.name.decode(errors="replace"),
        kind=_KINDS.get(found.type, "accelerator"),
        description=found.description.decode(errors="replace"),
        total_bytes=found.memory_total,
        free_bytes=found.memory_free,
        pci_id=found.device_id.decode(errors="replace") if found.device_id else None,
    )

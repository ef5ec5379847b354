"""The devices that the linked llama.cpp lists, as values, and their native handles. Decides nothing about them."""

import ctypes
from typing import Any

from tokencli.core import Device, DeviceKind
from tokencli.engine.library import ggml

_KINDS: dict[int, DeviceKind] = {0: "cpu", 1: "gpu", 2: "integrated", 3: "accelerator"}


def list_devices() -> list[Device]:
    """All devices, in llama.cpp's order. The CPU's memory is what the machine has in all: read what is free elsewhere."""
    library = ggml()
    return [_device(library, library.ggml_backend_dev_get(index)) for index in range(library.ggml_backend_dev_count())]


def handle(device_id: str) -> int | None:
    """The native handle of the device with llama.cpp's name `device_id`, None where there is none."""
    library = ggml()
    handles = (library.ggml_backend_dev_get(index) for index in range(library.ggml_backend_dev_count()))
    return next((each for each in handles if library.ggml_backend_dev_name(each).decode() == device_id), None)


def _device(library: Any, device: int) -> Device:
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return Device(
        id=library.ggml_backend_dev_name(device).decode(errors="replace"),
        kind=_KINDS.get(library.ggml_backend_dev_type(device), "accelerator"),
        description=library.ggml_backend_dev_description(device).decode(errors="replace"),
        total_bytes=total.value,
        free_bytes=free.value,
    )

"""llama.cpp's log: caught from its callback, and read for where the buffers went. The reading is pure."""

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TextIO

from tokencli.core import DeviceBytes, DeviceKind
from tokencli.errors import BadModelFile, NoRoomToCompute, OutOfMemory, TokencliError

_DEBUG, _INFO, _ERROR, _CONTINUE = 1, 2, 4, 5  # enum ggml_log_level

_BUFFER = re.compile(r"^\w+:\s+(?P<place>\S+)\s+(?P<what>model|KV|RS|compute|output) buffer size =\s*(?P<mib>[\d.]+) MiB")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
WEIGHTS_OF_BLOCK = re.compile(r"load_tensors: layer +(?P<block>\d+) assigned to device (?P<device>[^,\s]+)")
CACHE_OF_BLOCK = re.compile(r"llama_kv_cache: layer +(?P<block>\d+): dev = (?P<device>\S+)")
_EXPERTS_OVERRIDDEN = re.compile(r"^tensor blk\.(\d+)\.ffn_\w+exps\S* .* buffer type overridden to ")
_FLASH_ATTENTION = re.compile(r": Flash Attention (enabled|not supported)")
_UNKNOWN_ARCHITECTURE = re.compile(r"unknown model architecture: '([^']*)'")
_NO_MEMORY = re.compile(
    r"OutOf(?:Device|Host)Memory|out of memory|failed to allocate|unable to allocate|cannot allocate memory|bad_alloc",
    re.IGNORECASE,
)
_NO_ROOM_TO_COMPUTE = re.compile(r"failed to allocate (?:compute|graph)")
_TERMS = {"model": "weights", "KV": "kv", "RS": "recurrent", "compute": "compute", "output": "output"}


class LogCapture:
    """Keeps llama.cpp's lines from INFO up and writes them to `stream`, where the client finds the last ones after a crash."""

    def __init__(self, llama: Any, stream: TextIO) -> None:
        self.debug = False  # whether DEBUG lines are kept too: thousands, so only where they are read
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._stream = stream
        self._level = _INFO
        self._partial = ""
        self._callback = llama.llama_log_callback(self._receive)  # llama.cpp keeps only the pointer
        llama.llama_log_set(self._callback, ctypes.c_void_p(0))

    def clear(self) -> None:
        self.lines.clear()
        self.errors.clear()

    def _receive(self, level: int, text: bytes, _data: object) -> None:
        if level != _CONTINUE:
            self._level = level
        if self._level == _DEBUG and not self.debug:
            return
        *whole, self._partial = (self._partial + text.decode("utf-8", "replace")).split("\n")
        for line in whole:
            self.lines.append(line)
            if self._level == _ERROR:
                self.errors.append(line)
            if self._level != _DEBUG:
                self._stream.write(line + "\n")
        if whole:
            self._stream.flush()


def load_failure(errors: Sequence[str], file: str) -> TokencliError | None:
    """What llama.cpp's error lines say of a model that did not load; None where they say nothing known."""
    text = "\n".join(errors)
    unknown = _UNKNOWN_ARCHITECTURE.search(text)
    if unknown:
        hint = "it needs a newer llama.cpp or another engine; take another model"
        return BadModelFile(f"this llama.cpp does not know the architecture {unknown[1]!r} of {file}", hint)
    if _NO_ROOM_TO_COMPUTE.search(text):
        return NoRoomToCompute(f"the memory does not hold the compute buffers of {file}", "try fewer --gpu-layers")
    if _NO_MEMORY.search(text):
        return OutOfMemory(f"the memory does not hold {file}", "try fewer --gpu-layers, a smaller --context or a smaller quant")
    if errors:
        return BadModelFile(f"llama.cpp cannot load {file}: {errors[0].strip()}", "take another file of the model")
    return None


def offloaded(lines: Iterable[str]) -> tuple[int, int] | None:
    """Layers on the GPU and in all, as llama.cpp says; None where it does not (no GPU in the build)."""
    found = [match for line in lines if (match := _OFFLOADED.search(line))]
    return (int(found[-1][1]), int(found[-1][2])) if found else None


def flash_attention(lines: Iterable[str]) -> Literal["on", "off"] | None:
    """What "auto" came to (resolve_fused_ops in llama-context.cpp); None where that was not the question."""
    found = [match[1] for line in lines if (match := _FLASH_ATTENTION.search(line))]
    return ("on" if found[-1] == "enabled" else "off") if found else None


def device_bytes(lines: Iterable[str], kinds: Mapping[str, DeviceKind]) -> tuple[DeviceBytes, ...]:
    """Bytes per device, from the `buffer size` lines; `kinds` names the devices that have memory of their own.

    A place that is no device (CPU_Mapped, CPU_REPACK, Vulkan_Host) is host memory and counts as the CPU's. A line that is
    printed again adds to the earlier one (caches with and without a window, files in parts), but for compute and output
    buffers, which are reserved more than once: there it replaces it.
    """
    mib: dict[tuple[str, str], float] = {}
    for line in lines:
        match = _BUFFER.search(line)
        if match:
            place, what = match["place"], match["what"]
            before = 0.0 if what in ("compute", "output") else mib.get((place, what), 0.0)
            mib[place, what] = before + float(match["mib"])
    terms: dict[str, dict[str, int]] = {}
    for (place, what), size in mib.items():
        device = place if kinds.get(place, "cpu") != "cpu" else "CPU"
        held = terms.setdefault(device, {})
        held[_TERMS[what]] = held.get(_TERMS[what], 0) + round(size * (1 << 20))
    return tuple(DeviceBytes(id=device, kind=kinds.get(device, "cpu"), **held) for device, held in sorted(terms.items()))


def blocks_by_device(lines: Iterable[str], pattern: re.Pattern[str]) -> dict[str, tuple[int, ...]]:
    """Block numbers by device, from DEBUG lines of WEIGHTS_OF_BLOCK or CACHE_OF_BLOCK."""
    found: dict[str, list[int]] = {}
    for line in lines:
        if match := pattern.search(line):
            found.setdefault(match["device"], []).append(int(match["block"]))
    return {device: tuple(sorted(set(blocks))) for device, blocks in found.items()}


def blocks_without_experts(lines: Iterable[str]) -> tuple[int, ...]:
    """Blocks whose experts an override keeps on the host, from DEBUG lines."""
    return tuple(sorted({int(match[1]) for line in lines if (match := _EXPERTS_OVERRIDDEN.match(line))}))


def beside(target: Iterable[DeviceBytes], draft: Iterable[DeviceBytes]) -> tuple[DeviceBytes, ...]:
    """What a target takes, with all that its draft takes as a term of its own, device by device."""
    together = {place.id: place for place in target}
    for place in draft:
        own = together.get(place.id, DeviceBytes(place.id, place.kind))
        together[place.id] = replace(own, draft=place.total)
    return tuple(together[device] for device in sorted(together))

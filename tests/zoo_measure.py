"""Run as a program: what llama.cpp would allocate for models of which there is only the header, by device and term.

Reads one JSON case a line and prints one JSON answer a line. A dry run (no_alloc) prints 0.00 for weights and KV cache, but
llama_get_memory_breakdown (llama-ext.h, which llama.cpp's own --fit uses) has their exact sizes. It is C++: the std::map it
returns is read as libstdc++ lays it out on x86-64. Nothing but tests may do so.
"""

import ctypes
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import llama_cpp
from llama_cpp._ggml import libggml

KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_NOT_MAPPED, _MAPPED = 0, 1
_STATE = re.compile(r"^llama_memory_recurrent:\s+(\S+) RS buffer size =\s*([\d.]+) MiB", re.MULTILINE)
_OUTPUT = re.compile(r"^llama_context:\s+(\S+)\s+output buffer size =\s*([\d.]+) MiB", re.MULTILINE)
_COMPUTE = re.compile(r"^sched_reserve:\s+(\S+) compute buffer size =\s*([\d.]+) MiB", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to open a file. `device`: None where llama.cpp is to have no GPU at all. `allocate`: really load it, mapped."""

    file: str
    context: int
    device: str | None = None
    gpu_layers: int = 0
    cpu_moe_layers: int = 0
    kv_type: str = "f16"
    ubatch: int = 512
    batch: int = 2048
    flash_attention: str = "auto"
    rows: int = 1
    snapshots: int = 0
    extra_buffers: bool = False
    allocate: bool = False


class _Overriding(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def measure(case: Case, log: list[str]) -> dict[str, Any]:
    """Bytes of {"weights", "kv", "recurrent", "output", "compute"} by buffer type, or {"error": ...}."""
    log.clear()
    keep: list[Any] = []
    model = llama_cpp.llama_model_load_from_file(case.file.encode(), _model_settings(case, keep))
    if not model:
        return {"error": "".join(log[-2:])}
    context = llama_cpp.llama_init_from_model(model, _context_settings(case))
    try:
        if not context:
            return {"error": "".join(log[-2:])}
        text = "".join(log)
        state = {place: float(mib) for place, mib in _STATE.findall(text)}
        answer: dict[str, Any] = {"recurrent": {place: mib * 2**20 for place, mib in state.items()}, "weights": {}, "kv": {}}
        for name, (weights, memory, _) in _breakdown(context):
            answer["weights"][name] = answer["weights"].get(name, 0) + weights
            answer["kv"][name] = answer["kv"].get(name, 0) + memory - int(state.get(name, 0) * 2**20)
        answer["output"] = {place: float(mib) * 2**20 for place, mib in _OUTPUT.findall(text)}
        answer["compute"] = {place: float(mib) * 2**20 for place, mib in _COMPUTE.findall(text)}
        return answer
    finally:
        if context:
            llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def _model_settings(case: Case, keep: list[Any]) -> Any:
    settings = llama_cpp.llama_model_default_params()
    settings.no_alloc, settings.load_mode = not case.allocate, _MAPPED if case.allocate else _NOT_MAPPED
    settings.n_gpu_layers, settings.use_extra_bufts = case.gpu_layers, case.extra_buffers
    devices = (ctypes.c_void_p * 2)(_device(case.device) if case.device else None, None)
    settings.devices = ctypes.cast(devices, ctypes.c_void_p)
    libggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    patterns = [rf"blk\.{block}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode() for block in range(case.cpu_moe_layers)]
    overriding = (_Overriding * (len(patterns) + 1))(
        *[_Overriding(pattern, libggml.ggml_backend_cpu_buffer_type()) for pattern in patterns], _Overriding(None, None)
    )
    if patterns:
        settings.tensor_buft_overrides = ctypes.cast(overriding, ctypes.c_void_p)
    keep += [devices, overriding, patterns]
    return settings


def _context_settings(case: Case) -> Any:
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = case.context, case.batch, case.ubatch
    settings.n_seq_max, settings.n_rs_seq, settings.n_outputs_max = 1, case.snapshots, case.rows
    settings.swa_full, settings.flash_attn_type = False, FLASH_ATTENTION[case.flash_attention]
    settings.type_k = settings.type_v = KV_TYPES[case.kv_type]
    return settings


def _device(name: str) -> Any:
    for function, result, arguments in (
        ("ggml_backend_dev_by_name", ctypes.c_void_p, [ctypes.c_char_p]),
        ("ggml_backend_buft_name", ctypes.c_char_p, [ctypes.c_void_p]),
    ):
        getattr(libggml, function).restype, getattr(libggml, function).argtypes = result, arguments
    found = libggml.ggml_backend_dev_by_name(name.encode())
    assert found, f"llama.cpp lists no {name}"
    return found


def _breakdown(context: Any) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Of each buffer type its name and bytes of (model, context, compute): the nodes of a std::map."""
    function = llama_cpp.llama_cpp._lib["_Z26llama_get_memory_breakdownPK13llama_context"]
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
    libggml.ggml_backend_buft_name.restype = ctypes.c_char_p
    libggml.ggml_backend_buft_name.argtypes = [ctypes.c_void_p]
    header = (ctypes.c_size_t * 6)()  # comparison, colour, root, first, last, count
    function(ctypes.cast(header, ctypes.c_void_p), ctypes.cast(context, ctypes.c_void_p))
    nodes = list(_nodes(header[2]))
    assert len(nodes) == header[5], "this std::map is laid out otherwise"
    for node in nodes:
        _, _, _, _, key, model, memory, compute = node
        yield libggml.ggml_backend_buft_name(key).decode(), (model, memory, compute)


def _nodes(address: int) -> Iterator[tuple[int, ...]]:
    if address:
        node = tuple((ctypes.c_size_t * 8).from_address(address))  # colour, parent, left, right, then the value
        yield from _nodes(node[2])
        yield node
        yield from _nodes(node[3])


def main() -> None:
    log: list[str] = []
    capture = llama_cpp.llama_log_callback(lambda _level, text, _data: log.append(text.decode("utf-8", "replace")))
    llama_cpp.llama_log_set(capture, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    for line in sys.stdin:
        print(json.dumps(measure(Case(**json.loads(line)), log)), flush=True)


if __name__ == "__main__":
    main()

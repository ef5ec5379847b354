"""Run as a program: what llama.cpp would keep between tokens for models of which there is only the metadata.

Its way to make a model from metadata alone (llama_model_init_from_user, with no_alloc) is meant for its own tests. Takes GGUF
files, prints one JSON line for each: the KV caches as [cells, blocks, MiB of keys, MiB of values], and MiB of recurrent state.
"""

import ctypes
import json
import os
import re
import sys
from typing import Any

import llama_cpp
from llama_cpp._ggml import libggml

CONTEXT, UBATCH, SEQUENCES = 4096, 64, 64

_KV = re.compile(
    r"llama_kv_cache: size =.*MiB \( *(\d+) cells, *(\d+) layers.*K \(f16\): *([\d.]+) MiB, V \(f16\): *([\d.]+) MiB"
)
_STATE = re.compile(r"llama_memory_recurrent: size = *([\d.]+) MiB")


class _Reading(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def measure(path: str, lines: list[str]) -> dict[str, Any]:
    lines.clear()
    model = _model(path)
    if not model:
        return {"error": "".join(lines[-2:])}
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = CONTEXT, UBATCH, UBATCH
    settings.n_seq_max, settings.kv_unified = SEQUENCES, True
    settings.swa_full, settings.flash_attn_type = False, 1
    if not llama_cpp.llama_init_from_model(model, settings):
        return {"error": "".join(lines[-2:])}
    log = "".join(lines)
    caches = [[int(cells), int(blocks), float(keys), float(values)] for cells, blocks, keys, values in _KV.findall(log)]
    state = _STATE.search(log)
    return {"kv": [cache for cache in caches if cache[1]], "state": float(state[1]) if state else 0.0}


def _model(path: str) -> Any:
    read = libggml.gguf_init_from_file
    read.argtypes, read.restype = [ctypes.c_char_p, _Reading], ctypes.c_void_p
    metadata = read(path.encode(), _Reading(True, None))
    settings = llama_cpp.llama_model_default_params()
    settings.no_alloc, settings.load_mtp, settings.n_gpu_layers = True, True, 0
    return llama_cpp.llama_model_init_from_user(metadata, _NO_DATA, None, settings)


_NO_DATA = llama_cpp.llama_model_set_tensor_data_t(lambda _tensor, _data: None)

if __name__ == "__main__":
    log: list[str] = []
    capture = llama_cpp.llama_log_callback(lambda _level, text, _data: log.append(text.decode("utf-8", "replace")))
    llama_cpp.llama_log_set(capture, ctypes.c_void_p(0))
    for file in sys.argv[1:]:
        child = os.fork()  # wrong metadata aborts the process
        if not child:
            print(json.dumps(measure(file, log)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print(json.dumps({"error": "llama.cpp aborted"}), flush=True)

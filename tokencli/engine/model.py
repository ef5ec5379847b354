"""A loaded model: llama.cpp's model and context for one sequence, as the Decoder that decode/ asks for.

Knows llama_cpp's low-level calls; knows no message, no sampler and no pipe.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokencli.core import Draft, Plan, Sampling
from tokencli.decode.rollback import MemoryState
from tokencli.decode.sampling import Candidates, Floats, candidates, probability
from tokencli.engine import devices
from tokencli.engine.library import logits_address
from tokencli.engine.vocabulary import NativeVocabulary
from tokencli.errors import DecodeFailed, DoesNotFit, EngineError, OutOfMemory

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
_LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1}
_PARTS_THAT_NO_CUT_BRINGS_BACK = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: recurrent states, sliding windows
_CHECKPOINTS = 2  # this turn's and the one before: /regen, /edit and /undo
ALL_LAYERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a memory that cannot be cut anywhere was at `length` tokens: the parts that a cut does not bring back."""

    length: int
    state: Any  # bytes, in llama.cpp's form


@dataclass(frozen=True, slots=True)
class Opening:
    """How one model is opened: a plan's target or its draft. `rows`: most rows of logits that one decode call keeps."""

    file: str
    device: str | None
    gpu_layers: int
    context: int
    threads: int
    batch_threads: int
    batch: int
    ubatch: int
    kv_type: str
    flash_attention: str
    extra_buffers: bool
    rows: int
    snapshots: int  # earlier states that a recurrent model is asked to keep
    load_mode: str
    cpu_moe_layers: int  # blocks, from the first, whose experts stay on the CPU

    @classmethod
    def of_target(cls, plan: Plan) -> "Opening":
        depth = plan.draft.max_tokens if plan.draft else 0
        return cls(
            file=plan.model.file,
            device=plan.device,
            gpu_layers=plan.gpu_layers,
            context=plan.context,
            threads=plan.threads,
            batch_threads=plan.batch_threads or plan.threads,
            batch=plan.batch,
            ubatch=plan.ubatch,
            kv_type=plan.kv_type,
            flash_attention=plan.flash_attention,
            extra_buffers=plan.extra_buffers,
            rows=1 + depth,
            snapshots=depth,
            load_mode=plan.load_mode,
            cpu_moe_layers=plan.cpu_moe_layers,
        )

    @classmethod
    def of_draft(cls, plan: Plan, draft: Draft) -> "Opening":
        assert draft.file
        target = cls.of_target(plan)
        layers = ALL_LAYERS if draft.device else 0
        return replace(target, file=draft.file, device=draft.device, gpu_layers=layers, rows=1, snapshots=0, cpu_moe_layers=0)


class LoadedModel:
    """One model, one context, one sequence. `sampling` is the chain that `candidates` applies; set it before a reply."""

    def __init__(self, llama: Any, opening: Opening, progress: Callable[[float], bool], dry: bool = False) -> None:
        """Load as told; `progress` gets fractions and may return False to stop. `dry`: reserve nothing, only tell sizes.

        Raises EngineError.
        """
        self._llama = llama
        self._opening = opening
        self.batch = opening.batch
        self._keep: list[Any] = []  # what llama.cpp keeps pointers to
        self._context: Any = None
        self._batch: Any = None
        self._model = self._load(progress, dry)
        self.vocabulary = NativeVocabulary(llama, self._model)
        self._row_type: Any = ctypes.c_float * self.vocabulary.size
        self._logits_address = logits_address(llama)
        self._views: dict[int, Floats] = {}
        self._recurrent = bool(llama.llama_model_is_recurrent(self._model) or llama.llama_model_is_hybrid(self._model))
        self._window = int(llama.llama_model_n_swa(self._model)) or None
        self.sampling = Sampling()
        self.seconds = 0.0
        self._held: list[int] = []
        self._checkpoints: list[Checkpoint] = []
        self._call_start = 0
        self._rows_from = 0

    def open_context(self) -> None:
        """Reserve KV cache and compute buffers. Raises OutOfMemory."""
        llama, opening = self._llama, self._opening
        self._context = llama.llama_init_from_model(self._model, self._context_parameters())
        if not self._context:
            raise OutOfMemory(
                f"llama.cpp could not reserve a context of {opening.context} tokens",
                "try a smaller --context or fewer --gpu-layers",
            )
        self.context = int(llama.llama_n_ctx(self._context))
        self.batch = int(llama.llama_n_batch(self._context))  # never more than the context
        self.snapshots = int(llama.llama_n_rs_seq(self._context))
        self._memory = llama.llama_get_memory(self._context)
        self._batch = llama.llama_batch_init(self.batch, 0, 1)
        shape = (self.batch,)
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1
        for index in range(self.batch):
            self._batch.seq_id[index][0] = 0

    def reopen(self, rows: int) -> None:
        """Forget all, and keep the logits of up to `rows` tokens of a call from now on. Raises OutOfMemory."""
        self._close_context()
        self._opening = replace(self._opening, rows=max(rows, self._opening.rows))
        self._held, self._checkpoints = [], []
        self._views.clear()
        self.open_context()

    def close(self) -> None:
        """Give the memory back. The object is of no use afterwards."""
        self._close_context()
        self._llama.llama_model_free(self._model)

    def _close_context(self) -> None:
        """Give back what `open_context` took, as far as it came."""
        if self._batch is not None:
            self._llama.llama_batch_free(self._batch)
        if self._context:
            self._llama.llama_free(self._context)
        self._batch = self._context = None

    def warm_up(self) -> None:
        """Decode one token and forget it: where a broken build dies, and where shaders are compiled."""
        self.decode([0], 1)
        self.rollback(0)
        self.seconds = 0.0

    def use_threads(self, count: int | None) -> None:
        """Compute with so many from now on; None: as the model was opened."""
        opening = self._opening
        self._llama.llama_set_n_threads(self._context, count or opening.threads, count or opening.batch_threads)

    @property
    def length(self) -> int:
        """Tokens in the memory."""
        return len(self._held)

    @property
    def weight_bytes(self) -> int:
        return int(self._llama.llama_model_size(self._model))

    @property
    def draft_limit(self) -> int | None:
        """Most draft tokens that one pass can take back exactly; None for any number."""
        return self.snapshots if self._recurrent else None

    # Decoder

    def decode(self, tokens: Sequence[int], rows: int) -> None:
        """Append tokens in batches; keep the logits of the last `rows`, which must fit into one batch."""
        batch = self.batch
        if self.length + len(tokens) > self.context:
            raise DoesNotFit(f"{self.length + len(tokens)} tokens do not fit into a context of {self.context}", "raise --context")
        for start in range(0, len(tokens), batch):
            part = tokens[start : start + batch]
            last = start + batch >= len(tokens)
            self._decode_batch(part, rows if last else 0)

    def candidates(self, row: int) -> Candidates:
        return candidates(self.logits(row), self.sampling)

    def logits(self, row: int) -> Floats:
        """Kept row `row` as the model gave it; valid until the next call."""
        return self._logits(self._rows_from + row)

    def probability(self, row: int, token: int) -> float:
        return probability(self.logits(row), token)

    def floor(self) -> int:
        oldest = self._llama.llama_memory_seq_pos_min(self._memory, 0) if self._window else None
        return MemoryState(self.length, self._call_start, self._window, oldest, self._recurrent, self.snapshots).floor

    def rollback(self, length: int) -> None:
        """Forget all tokens from `length` on. What no cut and no checkpoint brings back is decoded again."""
        if length == self.length:
            return
        if length and self.floor() <= length and self._cut(length):
            return
        text = self._held[:length]
        if not self._restore(length):
            self._llama.llama_memory_clear(self._memory, False)
            self._held, self._checkpoints = [], []
        self.decode(text[self.length :], 0)

    def reach(self, length: int) -> int:
        """The longest length up to `length` that `rollback` takes the memory back to without decoding anything."""
        if length >= self.length or self.floor() <= length:
            return min(length, self.length)
        return max((each.length for each in self._checkpoints if each.length <= length), default=0)

    @property
    def needs_checkpoints(self) -> bool:
        return self._recurrent or self._window is not None

    def checkpoint(self) -> None:
        """Keep what a later cut to this length needs; nothing where a cut alone is right."""
        if not self.needs_checkpoints:
            return
        size = self._llama.llama_state_seq_get_size_ext(self._context, 0, _PARTS_THAT_NO_CUT_BRINGS_BACK)
        state = (ctypes.c_uint8 * size)()
        if self._llama.llama_state_seq_get_data_ext(self._context, state, size, 0, _PARTS_THAT_NO_CUT_BRINGS_BACK):
            earlier = [each for each in self._checkpoints if each.length < self.length]
            self._checkpoints = [*earlier, Checkpoint(self.length, state)][-_CHECKPOINTS:]

    # the memory on disk

    @property
    def held(self) -> Sequence[int]:
        """The tokens in the memory."""
        return self._held

    def save_state(self, file: str) -> int:
        """Write the memory and its tokens; the bytes written. Raises EngineError."""
        tokens = (self._llama.llama_token * len(self._held))(*self._held)
        size = int(self._llama.llama_state_seq_save_file(self._context, file.encode(), 0, tokens, len(self._held)))
        if not size:
            raise EngineError(f"llama.cpp could not write its state to {file}", "look for free space on the disk")
        return size

    def load_state(self, file: str) -> None:
        """Take up a memory that was written with the same model and settings. Raises EngineError; the memory is empty then."""
        self.rollback(0)
        tokens, count = (self._llama.llama_token * self.context)(), ctypes.c_size_t()
        found = self._llama.llama_state_seq_load_file(self._context, file.encode(), 0, tokens, self.context, ctypes.byref(count))
        if not found:
            self._llama.llama_memory_clear(self._memory, True)
            raise EngineError(f"llama.cpp could not take up the state in {file}", "it is computed anew")
        self._held = list(tokens[: count.value])
        self._call_start = self.length

    # inside

    def _cut(self, length: int) -> bool:
        if not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
            return False
        del self._held[length:]
        self._checkpoints = [each for each in self._checkpoints if each.length <= length]
        self._call_start = min(self._call_start, length)
        return True

    def _restore(self, length: int) -> bool:
        """Go back to the latest checkpoint at or before `length`."""
        state = next((each for each in reversed(self._checkpoints) if each.length <= length), None)
        if state is None:
            return False
        size = len(state.state)
        read = self._llama.llama_state_seq_set_data_ext(self._context, state.state, size, 0, _PARTS_THAT_NO_CUT_BRINGS_BACK)
        if not read or not self._cut(state.length):
            return False
        self._call_start = self.length
        return True

    def _load(self, progress: Callable[[float], bool], dry: bool) -> Any:
        llama, opening = self._llama, self._opening
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = opening.gpu_layers
        parameters.use_extra_bufts = opening.extra_buffers
        parameters.devices = ctypes.cast(self._device_list(), ctypes.c_void_p)
        parameters.load_mode = _LOAD_MODES[opening.load_mode]
        if opening.cpu_moe_layers:
            overrides = devices.experts_on_cpu(opening.cpu_moe_layers)
            parameters.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
            self._keep.append(overrides)
        if dry:
            parameters.no_alloc, parameters.load_mode = True, _LOAD_MODES["none"]
        callback = llama.llama_progress_callback(lambda fraction, _data: progress(fraction))
        parameters.progress_callback = callback
        self._keep.append(callback)
        model = llama.llama_model_load_from_file(opening.file.encode(), parameters)
        if not model:
            raise EngineError(f"llama.cpp could not load {opening.file}", "take another file of the model")
        return model

    def _context_parameters(self) -> Any:
        opening = self._opening
        parameters = self._llama.llama_context_default_params()
        parameters.n_ctx = opening.context
        parameters.n_batch, parameters.n_ubatch = opening.batch, opening.ubatch
        parameters.n_seq_max = 1
        parameters.n_rs_seq = opening.snapshots
        parameters.n_outputs_max = opening.rows
        parameters.n_threads, parameters.n_threads_batch = opening.threads, opening.batch_threads
        parameters.flash_attn_type = _FLASH_ATTENTION[opening.flash_attention]
        parameters.type_k = parameters.type_v = _KV_TYPES[opening.kv_type]
        parameters.swa_full = False
        parameters.no_perf = True
        return parameters

    def _device_list(self) -> Any:
        """The one device of the plan, null-terminated: llama.cpp would spread the model over all it finds (report A1-20)."""
        wanted = self._opening.device
        chosen = devices.handle(wanted) if wanted else None
        if wanted and chosen is None:
            raise EngineError(f"llama.cpp no longer lists the device {wanted}", "run again, or use --gpu-layers 0")
        array = (ctypes.c_void_p * 2)(chosen, None)
        self._keep.append(array)
        return array

    def _logits(self, index: int) -> Floats:
        """A view of the logits after token `index` of the last call, shape (vocabulary,); valid until the next call."""
        address = self._logits_address(self._context, index)
        if not address:
            raise EngineError(f"llama.cpp kept no logits for token {index}", "report this as a bug")
        view = self._views.get(address)  # llama.cpp reuses its few rows, and making a view costs more than reading it
        if view is None:
            view = self._views[address] = np.frombuffer(self._row_type.from_address(address), dtype=np.float32)
        return view

    def _decode_batch(self, tokens: Sequence[int], rows: int) -> None:
        count = len(tokens)
        start, first_row = self.length, count - rows
        for index, token in enumerate(tokens):  # one token is the usual case, where whole-array operations cost more
            self._tokens[index] = token
            self._positions[index] = start + index
            self._wanted[index] = index >= first_row
        self._rows_from = count - rows
        self._batch.n_tokens = count
        begun = time.perf_counter()
        status = self._llama.llama_decode(self._context, self._batch)
        self._llama.llama_synchronize(self._context)
        self.seconds += time.perf_counter() - begun
        if status == _NO_MEMORY:
            raise OutOfMemory("llama.cpp ran out of memory while decoding", "try fewer --gpu-layers or a smaller --context")
        if status:
            raise DecodeFailed(f"llama.cpp could not decode (status {status})", _DECODE_HINTS.get(status, "try --gpu-layers 0"))
        self._call_start = self.length
        self._held += tokens


_NO_MEMORY = -2  # GGML_STATUS_ALLOC_FAILED in llama_context::decode
_DECODE_HINTS = {1: "raise --context", 2: "the run was cancelled"}

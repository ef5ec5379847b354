"""A loaded model: llama.cpp's model and context for one sequence, as the Decoder and the Vocabulary that decode/ asks for.

Knows llama_cpp's low-level calls; knows no message, no sampler and no pipe.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tokencli.core import Plan, Sampling
from tokencli.decode.sampling import Candidates, Floats, candidates
from tokencli.engine import devices
from tokencli.errors import DoesNotFit, EngineError, UsageError

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}


class LoadedModel:
    """One model, one context, one sequence. `sampling` is the chain that `candidates` applies; set it before a reply."""

    def __init__(self, llama: Any, plan: Plan, progress: Callable[[float], bool]) -> None:
        """Load as the plan says; `progress` gets fractions and may return False to stop. Raises EngineError, DoesNotFit."""
        self._llama = llama
        self._plan = plan
        self.batch = plan.batch
        self._keep: list[Any] = []  # what llama.cpp keeps pointers to
        self._model = self._load(progress)
        self._vocabulary = llama.llama_model_get_vocab(self._model)
        self.vocabulary_size = int(llama.llama_vocab_n_tokens(self._vocabulary))
        self._row_type: Any = ctypes.c_float * self.vocabulary_size
        self._pieces: dict[int, bytes] = {}  # by token, read once: the library call costs more than the token loop's rest
        self._piece_buffer = ctypes.create_string_buffer(256)
        self._ends: dict[int, bool] = {}
        self._shown_tags: frozenset[int] = frozenset()
        self.sampling = Sampling()
        self.length = 0
        self.seconds = 0.0
        self._rows_from = 0

    def open_context(self) -> None:
        """Reserve KV cache and compute buffers. Raises DoesNotFit."""
        llama, plan = self._llama, self._plan
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = plan.context
        parameters.n_batch, parameters.n_ubatch = plan.batch, plan.ubatch
        parameters.n_seq_max = 1
        parameters.n_outputs_max = 1 + (plan.draft.max_tokens if plan.draft else 0)
        parameters.n_threads = parameters.n_threads_batch = plan.threads
        parameters.flash_attn_type = _FLASH_ATTENTION[plan.flash_attention]
        parameters.type_k = parameters.type_v = _KV_TYPES[plan.kv_type]
        parameters.swa_full = False
        parameters.no_perf = True
        self._context = llama.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise DoesNotFit(
                f"llama.cpp could not reserve a context of {plan.context} tokens", "try a smaller --context or fewer --gpu-layers"
            )
        self.context = int(llama.llama_n_ctx(self._context))
        self.batch = int(llama.llama_n_batch(self._context))  # never more than the context
        self._memory = llama.llama_get_memory(self._context)
        self._batch = llama.llama_batch_init(self.batch, 0, 1)
        shape = (self.batch,)
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        self._ascending = np.arange(self.context, dtype=np.int32)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1
        for index in range(self.batch):
            self._batch.seq_id[index][0] = 0

    def warm_up(self) -> None:
        """Decode one token and forget it: where a broken build dies, and where shaders are compiled."""
        self.decode([0], 1)
        self.rollback(0)
        self.seconds = 0.0

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
        pointer = self._llama.llama_get_logits_ith(self._context, self._rows_from + row)
        if not pointer:
            raise EngineError(f"llama.cpp kept no logits for row {row}", "report this as a bug")
        logits: Floats = np.frombuffer(self._row_type.from_address(ctypes.addressof(pointer.contents)), dtype=np.float32)
        return candidates(logits, self.sampling)

    def floor(self) -> int:
        return 0

    def rollback(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        if length == 0:
            self._llama.llama_memory_clear(self._memory, False)
        elif not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise EngineError("llama.cpp cannot take tokens back for this model", "use --draft off")
        self.length = length

    # Vocabulary

    def tokenize(self, text: str, special: bool) -> list[int]:
        """Token ids of `text` alone, no BOS added; `special`: control tokens written in the text count as such."""
        raw = text.encode("utf-8", "replace")
        size = len(raw) + 8
        while True:
            buffer = (self._llama.llama_token * size)()
            count = self._llama.llama_tokenize(self._vocabulary, raw, len(raw), buffer, size, False, special)
            if count >= 0:
                return list(buffer[:count])
            size = -count

    def prompt_tokens(self, text: str) -> list[int]:
        """Token ids of a rendered prompt with exactly one BOS where the vocabulary asks for one (reports A5-03 to A5-05)."""
        tokens = self.tokenize(text, special=True)
        bos = self._llama.llama_vocab_bos(self._vocabulary)
        if self._llama.llama_vocab_get_add_bos(self._vocabulary) and bos >= 0:
            while tokens and tokens[0] == bos:
                tokens.pop(0)
            tokens.insert(0, bos)
        if not tokens:
            raise UsageError("the prompt is empty", "give some text")
        return tokens

    def piece(self, token: int) -> bytes:
        """The token's bytes in shown text. Control tokens are empty, but for the tags that reasoning is told apart by."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token, special=token in self._shown_tags)
        return known

    def is_end(self, token: int) -> bool:
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(self._llama.llama_vocab_is_eog(self._vocabulary, token))
        return known

    def chat_template(self) -> str | None:
        template = self._llama.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else None

    def special_text(self, which: str) -> str:
        """The text of the `bos` or `eos` token, as templates write it; empty where the vocabulary has none."""
        token = getattr(self._llama, f"llama_vocab_{which}")(self._vocabulary)
        text = self._llama.llama_vocab_get_text(self._vocabulary, token) if token >= 0 else None
        return text.decode("utf-8", "replace") if text else ""

    def show_tags(self, tags: Sequence[str]) -> None:
        """Let `piece` give the text of these tags where the vocabulary has them as control tokens."""
        ids = (self.tokenize(tag, special=True) for tag in tags)
        self._shown_tags = frozenset(found[0] for found in ids if len(found) == 1)
        self._pieces.clear()

    # inside

    def _load(self, progress: Callable[[float], bool]) -> Any:
        llama, plan = self._llama, self._plan
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = plan.gpu_layers
        parameters.use_extra_bufts = plan.extra_buffers
        parameters.devices = ctypes.cast(self._device_list(), ctypes.c_void_p)
        callback = llama.llama_progress_callback(lambda fraction, _data: progress(fraction))
        parameters.progress_callback = callback
        self._keep.append(callback)
        model = llama.llama_model_load_from_file(plan.model.file.encode(), parameters)
        if not model:
            raise EngineError(f"llama.cpp could not load {plan.model.file}", "its log says why: see the lines below")
        return model

    def _device_list(self) -> Any:
        """The one device of the plan, null-terminated: llama.cpp would spread the model over all it finds (report A1-20)."""
        chosen = devices.handle(self._plan.device) if self._plan.device else None
        if self._plan.device and chosen is None:
            raise EngineError(f"llama.cpp no longer lists the device {self._plan.device}", "run again, or use --gpu-layers 0")
        array = (ctypes.c_void_p * 2)(chosen, None)
        self._keep.append(array)
        return array

    def _read_piece(self, token: int, special: bool) -> bytes:
        while True:
            buffer, size = self._piece_buffer, len(self._piece_buffer)
            count = self._llama.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, special)
            if count >= 0:
                return ctypes.string_at(buffer, count)
            self._piece_buffer = ctypes.create_string_buffer(-count)

    def _decode_batch(self, tokens: Sequence[int], rows: int) -> None:
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = self._ascending[self.length : self.length + count]
        self._wanted[:count] = 0
        self._wanted[count - rows : count] = 1
        self._rows_from = count - rows
        self._batch.n_tokens = count
        start = time.perf_counter()
        status = self._llama.llama_decode(self._context, self._batch)
        self._llama.llama_synchronize(self._context)
        self.seconds += time.perf_counter() - start
        if status:
            raise EngineError(f"llama.cpp could not decode (status {status})", _DECODE_HINTS.get(status, "try --gpu-layers 0"))
        self.length += count


_DECODE_HINTS = {1: "raise --context", 2: "the run was cancelled"}

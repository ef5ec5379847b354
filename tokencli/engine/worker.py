"""The process that holds the native library: reads requests from stdin, answers on what was stdout (see wire.py).

It may crash or be killed at any time; nothing a user values lives here. It ignores SIGINT and ends when its stdin closes.
"""

import dataclasses
import functools
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from tokencli.core import Done, Event, FinishReason, Loading, Plan, Prefilling, Request
from tokencli.decode.grammar import Constrained
from tokencli.decode.prefix import Reuse, in_held_tokens, reuse_of
from tokencli.decode.reply import Parts, Reply
from tokencli.decode.schema import grammar_of
from tokencli.decode.speculate import Decoder, Drafter, speculate
from tokencli.decode.stats import Meter
from tokencli.engine import wire
from tokencli.engine.devices import list_devices, tensor_limit
from tokencli.engine.grammar import NativeGrammar
from tokencli.engine.library import load_library
from tokencli.engine.log import LogCapture
from tokencli.engine.model import LoadedModel
from tokencli.engine.pair import Pair, dry_run
from tokencli.engine.prompt import CLOSE_THINKING, Prompt, make_prompt
from tokencli.engine.score import Rows, chunks_of, scored
from tokencli.engine.throughput import throughput
from tokencli.engine.vocabulary import NativeVocabulary
from tokencli.errors import DoesNotFit, EngineError, OutOfMemory, TokencliError, UsageError

Write = Callable[[bytes], None]
Cancelled = dict[int, FinishReason]  # requests that the client took back, and why


class Worker:
    """Serves one request after the other; a cancel comes in between, from the thread that reads stdin."""

    def __init__(self, write: Write, cancelled: Cancelled) -> None:
        self._write = write
        self._cancelled = cancelled
        self._llama = load_library()
        self._log = LogCapture(self._llama, sys.stderr)
        self._llama.llama_backend_init()
        self._pair: Pair | None = None

    def serve(self, message: dict[str, Any]) -> None:
        request = message["id"]
        match message["do"]:
            case "devices":
                self._write(wire.line(request, **{"is": "Devices"}, devices=list_devices()))
            case "tensor_limit":
                self._write(wire.line(request, **{"is": "Limit"}, bytes=tensor_limit(message["device"])))
            case "dry_run":
                self._dry_run(request, wire.plan(message["plan"]))
            case "load":
                self._load(request, wire.plan(message["plan"]), message.get("pace"))
            case "generate":
                self._generate(request, wire.request(message["request"]))
            case "count":
                self._count(request, wire.request(message["request"]))
            case "throughput":
                self._throughput(request, message["tokens"], message["depth"], message["at_once"])
            case "score":
                self._score(request, message)
            case "save_state" | "load_state":
                self._state(request, message["do"], message["file"])
            case unknown:
                raise EngineError(f"the engine knows no request {unknown!r}", "client and worker are of different versions")

    def _dry_run(self, request: int, plan: Plan) -> None:
        self._write(wire.line(request, **{"is": "Sizes"}, dry_run=dry_run(self._llama, self._log, plan)))

    def _load(self, request: int, plan: Plan, pace: object) -> None:
        if self._pair:
            self._pair.close()
            self._pair = None
        testing = functools.partial(self._write, wire.line(request, **{"is": "Testing"}))
        self._pair = Pair.load(self._llama, self._log, plan, self._loading(request), testing, pace)
        gc.collect()
        gc.freeze()  # what is loaded stays: no later collection needs to look at it between two tokens
        self._tell(request, self._pair.loaded)

    def _loading(self, request: int) -> Callable[[float], bool]:
        """A progress callback that tells every whole percent once."""
        told = -1

        def progress(fraction: float) -> bool:
            nonlocal told
            if int(100 * fraction) > told:
                told = int(100 * fraction)
                self._tell(request, Loading(fraction))
            return request not in self._cancelled

        return progress

    def _generate(self, request: int, wanted: Request) -> None:
        target = self._target
        assert self._pair
        pair = self._pair
        start = time.perf_counter()
        prompt = make_prompt(target.vocabulary, wanted, settle=wanted.reuse and target.needs_checkpoints)
        tokens, reuse = _reused(target, prompt.tokens) if wanted.reuse else (prompt.tokens, None)
        _check_length(tokens, target.context)
        kept = reuse.kept if reuse else 0
        target.rollback(kept)
        target.sampling = wanted.sampling
        pair.use_threads(wanted.threads)
        decoder = self._constrained(wanted, prompt)
        meter = Meter(time.perf_counter, len(tokens), kept, pair.loaded.load_seconds, start)
        reply = _reply(target.vocabulary, wanted, prompt)
        drafter = pair.drafter(wanted)
        notes = list(prompt.notes)
        read = target.seconds
        if self._prefill(request, target, tokens, prompt.settled):
            meter.prefilled()
            if pair.controller:
                pair.controller.prompt_read(len(tokens) - kept, target.seconds - read)
            verified, drafted = pair.engine_seconds
            if self._decode(request, wanted, decoder, tokens, reply, drafter, meter):
                notes.append(f"the reasoning was closed after {wanted.max_thinking} tokens, as asked for")
                wanted = dataclasses.replace(wanted, max_thinking=None)
                self._decode(request, wanted, decoder, tokens, reply, drafter, meter)
            verify, draft = pair.engine_seconds
            meter.engine_seconds(verify - verified, draft - drafted)
        self._send_text(request, reply.end(self._cancelled.get(request, "length")))
        assert reply.finish is not None
        if drafter.failure:
            notes.append(f"without the draft from then on: {drafter.failure}")
        stats = meter.stats()
        notes += pair.paces_told(stats)
        pace = pair.controller.export() if pair.controller else None
        self._tell(request, Done(reply.finish, stats, tuple(notes), reuse.why if reuse else None, pace))

    def _count(self, request: int, wanted: Request) -> None:
        tokens = make_prompt(self._target.vocabulary, wanted).tokens
        self._write(wire.line(request, **{"is": "Count"}, count=len(tokens)))

    def _throughput(self, request: int, tokens: int, depth: int, at_once: bool) -> None:
        def tell(done: int) -> None:
            self._tell(request, Prefilling(done, depth + tokens))

        seconds = throughput(self._target, tokens, depth, at_once, time.perf_counter, tell)
        self._write(wire.line(request, **{"is": "Seconds"}, seconds=seconds))

    def _score(self, request: int, asked: dict[str, Any]) -> None:
        target = self._target
        chunks = chunks_of(asked["text"], target.vocabulary, asked["length"], asked["most"])
        for event in scored(target, chunks, Rows.kept(asked["keep"]), Rows.kept(asked["against"])):
            self._tell(request, event)
            if request in self._cancelled:
                break
        self._write(wire.line(request, **{"is": "Count"}, count=len(chunks)))

    @property
    def _target(self) -> LoadedModel:
        if self._pair is None:
            raise EngineError("no model is loaded", "load one first")
        return self._pair.target

    def _state(self, request: int, do: str, file: str) -> None:
        target = self._target
        if do == "save_state":
            target.save_state(file)
        else:
            target.load_state(file)
        self._write(wire.line(request, **{"is": "Count"}, count=target.length))

    def _prefill(self, request: int, model: LoadedModel, prompt: list[int], settled: int) -> bool:
        """Decode what of the prompt is not in the memory, batch by batch; False when it was cancelled in between.

        At `settled` tokens the model keeps a checkpoint: the next turn, or another answer, goes on from there.
        """
        stops = [settled] if model.length < settled < len(prompt) else []
        for end in (*stops, len(prompt)):
            for start in range(model.length, end, model.batch):
                self._tell(request, Prefilling(start, len(prompt)))
                if request in self._cancelled:
                    return False
                part = prompt[start : min(start + model.batch, end)]
                model.decode(part, 1 if start + len(part) == len(prompt) else 0)
            if end == settled:
                model.checkpoint()
        return True

    def _constrained(self, wanted: Request, prompt: Prompt) -> Decoder:
        """What decodes the answer: the target, or the target under the grammar asked for. Raises UsageError."""
        assert self._pair
        target = self._pair.target
        text = grammar_of(wanted.json_schema) if wanted.json_schema is not None else wanted.grammar
        if text is None:
            return target
        if prompt.inside:
            what = "this model reasons before it answers and cannot be told not to: its answer cannot be held to a grammar"
            raise UsageError(what, "leave out --grammar and --json-schema, or take another model")
        grammar = NativeGrammar(self._llama, target.vocabulary.handle, text)
        grammar.go_on(target.vocabulary.tokenize(wanted.begun.answer, special=False))
        return Constrained(target, grammar, wanted.sampling)

    def _decode(
        self, request: int, wanted: Request, decoder: Decoder, prompt: list[int], reply: Reply, drafter: Drafter, meter: Meter
    ) -> bool:
        """The token loop: send what each step shows, until the reply ends by itself or by a cancel.

        True where the reasoning was closed because of its length: the answer is to go on.
        """
        assert self._pair
        pair = self._pair
        depth = pair.depth if wanted.max_draft is None else min(pair.depth, wanted.max_draft)
        steps = speculate(decoder, drafter, prompt, seed=wanted.sampling.seed, depth=depth, context=pair.target.context)
        closing = False
        for step in steps:
            before = reply.tokens
            drafted = step.tokens[: step.accepted] if wanted.show_draft else ()
            shown = reply.add(drafted) if drafted else []
            own = reply.add(step.tokens[len(drafted) :])
            meter.emitted(reply.tokens - before, step.drafted, step.accepted)
            self._send_text(request, shown, drafted=True)
            self._send_text(request, own)
            closing = reply.is_reasoning and wanted.max_thinking is not None and reply.reasoning_tokens >= wanted.max_thinking
            if reply.finish or request in self._cancelled or closing:
                steps.close()
        if not closing or reply.finish or request in self._cancelled:
            return False
        return self._close_thinking(request, prompt, reply)

    def _close_thinking(self, request: int, history: list[int], reply: Reply) -> bool:
        """Write the end of the reasoning in the model's place; False where the context has no room for it."""
        assert self._pair
        target = self._pair.target
        closing = target.vocabulary.tokenize(CLOSE_THINKING, special=True)
        if len(history) + len(closing) >= target.context:
            return False
        target.decode([*history[target.length :], *closing], 1)
        history += closing
        self._send_text(request, reply.add(closing))
        return not reply.finish

    def _tell(self, request: int, event: Event) -> None:
        self._write(wire.line(request, **wire.event_fields(event)))

    def _send_text(self, request: int, parts: Parts, drafted: bool = False) -> None:
        for kind, text in parts:
            self._write(wire.text_line(request, kind, text, drafted))


def _reused(target: LoadedModel, prompt: list[int]) -> tuple[list[int], Reuse]:
    """The prompt in the tokens that the memory holds, and how much of it is kept."""
    piece = target.vocabulary.prompt_piece
    tokens = in_held_tokens(target.held, prompt, piece)
    return tokens, reuse_of(target.held, tokens, target.reach, piece)


def _check_length(prompt: list[int], context: int) -> None:
    if len(prompt) > context:
        raise DoesNotFit(
            f"the prompt has {len(prompt)} tokens, the context holds {context}",
            f"shorten it, or use --context {len(prompt) + 512}",
        )


def _reply(vocabulary: NativeVocabulary, wanted: Request, prompt: Prompt) -> Reply:
    most = None if wanted.max_tokens is None else max(wanted.max_tokens - prompt.begun, 1)
    return Reply(
        vocabulary,
        stop=wanted.stop,
        max_tokens=most,
        inside_reasoning=prompt.inside,
        begun=bool(wanted.begun),
        past_end=wanted.past_end,
    )


def serve(inbox: BinaryIO, write: Write) -> None:
    """Read requests until the client goes; answer errors as errors."""
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    cancelled: Cancelled = {}
    worker: Worker | None = None
    threading.Thread(target=_read, args=(inbox, requests, cancelled), daemon=True).start()
    while True:
        message = requests.get()
        try:
            worker = worker or Worker(write, cancelled)
            worker.serve(message)
        except TokencliError as error:
            write(_error_line(message["id"], error))
        except MemoryError:
            write(_error_line(message["id"], OutOfMemory("the memory is full", "use a smaller --context")))


def _error_line(request: int, error: TokencliError) -> bytes:
    return wire.line(request, **{"is": "Error"}, kind=error.kind, what=error.what, hint=error.hint)


def _read(inbox: BinaryIO, requests: "queue.Queue[dict[str, Any]]", cancelled: Cancelled) -> None:
    for raw in inbox:
        message = json.loads(raw)
        if message["do"] == "cancel":
            cancelled[message["id"]] = message["reason"]
        else:
            requests.put(message)
    os._exit(0)  # the client has gone: nothing to tidy, and the main thread may be deep in native code


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not come between the messages

    def write(raw: bytes) -> None:
        os.write(channel, raw)

    serve(sys.stdin.buffer, write)


if __name__ == "__main__":
    main()

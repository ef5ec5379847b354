"""The process that holds the native library: reads requests from stdin, answers on what was stdout (see wire.py).

It may crash or be killed at any time; nothing a user values lives here. It ignores SIGINT and ends when its stdin closes.
"""

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

from tokencli.core import Done, Event, FinishReason, Loading, Message, Plan, Prefilling, Request
from tokencli.decode.reply import Parts, Reply
from tokencli.decode.speculate import Drafter, speculate
from tokencli.decode.stats import Meter
from tokencli.engine import chat_template, wire
from tokencli.engine.devices import list_devices, tensor_limit
from tokencli.engine.library import load_library
from tokencli.engine.log import LogCapture
from tokencli.engine.model import LoadedModel
from tokencli.engine.pair import Pair, dry_run
from tokencli.engine.vocabulary import NativeVocabulary
from tokencli.errors import DoesNotFit, EngineError, OutOfMemory, TokencliError

Write = Callable[[bytes], None]
Cancelled = dict[int, FinishReason]  # requests that the client took back, and why

THINK_TAGS = ("<think>", "</think>")


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
                self._load(request, wire.plan(message["plan"]))
            case "generate":
                self._generate(request, wire.request(message["request"]))
            case unknown:
                raise EngineError(f"the engine knows no request {unknown!r}", "client and worker are of different versions")

    def _dry_run(self, request: int, plan: Plan) -> None:
        self._write(wire.line(request, **{"is": "Sizes"}, dry_run=dry_run(self._llama, self._log, plan)))

    def _load(self, request: int, plan: Plan) -> None:
        if self._pair:
            self._pair.close()
            self._pair = None
        testing = functools.partial(self._write, wire.line(request, **{"is": "Testing"}))
        self._pair = Pair.load(self._llama, self._log, plan, self._loading(request), testing)
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
        if self._pair is None:
            raise EngineError("no model is loaded", "load one first")
        pair, target = self._pair, self._pair.target
        target.rollback(0)
        target.sampling = wanted.sampling
        prompt, inside = _prompt(target.vocabulary, wanted.messages)
        meter = Meter(time.perf_counter, len(prompt), 0, pair.loaded.load_seconds)
        reply = Reply(target.vocabulary, stop=wanted.stop, max_tokens=wanted.max_tokens, inside_reasoning=inside)
        drafter = pair.drafter(wanted)
        if self._prefill(request, target, prompt):
            meter.prefilled()
            before = pair.engine_seconds
            self._decode(request, wanted, prompt, reply, drafter, meter)
            meter.engine_seconds(pair.engine_seconds - before)
        self._send_text(request, reply.end(self._cancelled.get(request, "length")))
        assert reply.finish is not None
        notes = (f"without the draft from then on: {drafter.failure}",) if drafter.failure else ()
        self._tell(request, Done(reply.finish, meter.stats(), notes))

    def _prefill(self, request: int, model: LoadedModel, prompt: list[int]) -> bool:
        """Decode the prompt batch by batch; False when it was cancelled in between. Raises DoesNotFit."""
        if len(prompt) > model.context:
            raise DoesNotFit(
                f"the prompt has {len(prompt)} tokens, the context holds {model.context}",
                f"shorten it, or use --context {len(prompt) + 512}",
            )
        step = model.batch
        for start in range(0, len(prompt), step):
            self._tell(request, Prefilling(start, len(prompt)))
            if request in self._cancelled:
                return False
            part = prompt[start : start + step]
            model.decode(part, 1 if start + step >= len(prompt) else 0)
        return True

    def _decode(self, request: int, wanted: Request, prompt: list[int], reply: Reply, drafter: Drafter, meter: Meter) -> None:
        """The token loop: send what each step shows, until the reply ends by itself or by a cancel."""
        assert self._pair
        pair = self._pair
        steps = speculate(pair.target, drafter, prompt, seed=wanted.sampling.seed, depth=pair.depth, context=pair.target.context)
        for step in steps:
            before = reply.tokens
            drafted = step.tokens[: step.accepted] if wanted.show_draft else ()
            shown = reply.add(drafted) if drafted else []
            own = reply.add(step.tokens[len(drafted) :])
            meter.emitted(reply.tokens - before, step.drafted, step.accepted)
            self._send_text(request, shown, drafted=True)
            self._send_text(request, own)
            if reply.finish or request in self._cancelled:
                steps.close()

    def _tell(self, request: int, event: Event) -> None:
        self._write(wire.line(request, **wire.event_fields(event)))

    def _send_text(self, request: int, parts: Parts, drafted: bool = False) -> None:
        for kind, text in parts:
            self._write(wire.text_line(request, kind, text, drafted))


def _prompt(vocabulary: NativeVocabulary, messages: tuple[Message, ...]) -> tuple[list[int], bool]:
    """The prompt's token ids, and whether it ends inside the reasoning tag."""
    template = vocabulary.chat_template()
    if template is None:
        return vocabulary.prompt_tokens("\n\n".join(message.content for message in messages)), False
    text = chat_template.render(template, messages, vocabulary.special_text("bos"), vocabulary.special_text("eos"))
    vocabulary.show_tags(THINK_TAGS)
    return vocabulary.prompt_tokens(text), text.rstrip().endswith(THINK_TAGS[0])


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

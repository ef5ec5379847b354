"""The process that holds the native library: reads requests from stdin, answers on what was stdout (see wire.py).

It may crash or be killed at any time; nothing a user values lives here. It ignores SIGINT and ends when its stdin closes.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from tokencli.core import Done, Event, FinishReason, Loaded, Loading, Message, Plan, Prefilling, Request
from tokencli.decode.reply import Parts, Reply
from tokencli.decode.speculate import NoDraft, speculate
from tokencli.decode.stats import Meter
from tokencli.engine import chat_template, wire
from tokencli.engine.devices import list_devices
from tokencli.engine.library import load_library
from tokencli.engine.log import LogCapture, device_bytes, load_failure, offloaded
from tokencli.engine.model import LoadedModel
from tokencli.errors import DoesNotFit, EngineError, TokencliError

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
        self._model: LoadedModel | None = None
        self._load_seconds = 0.0

    def serve(self, message: dict[str, Any]) -> None:
        request = message["id"]
        match message["do"]:
            case "devices":
                self._write(wire.line(request, **{"is": "Devices"}, devices=list_devices()))
            case "load":
                self._load(request, wire.plan(message["plan"]))
            case "generate":
                self._generate(request, wire.request(message["request"]))
            case unknown:
                raise EngineError(f"the engine knows no request {unknown!r}", "client and worker are of different versions")

    def _load(self, request: int, plan: Plan) -> None:
        start = time.perf_counter()
        self._log.lines.clear()
        self._model = model = self._open(request, plan)
        self._write(wire.line(request, **{"is": "Testing"}))
        model.warm_up()
        self._load_seconds = time.perf_counter() - start
        kinds = {device.id: device.kind for device in list_devices()}
        on_gpu, layers = offloaded(self._log.lines) or (0, plan.model.offloadable_layers)
        loaded = Loaded(
            gpu_layers=on_gpu,
            layers=layers,
            context=model.context,
            devices=device_bytes(self._log.lines, kinds),
            load_seconds=self._load_seconds,
            notes=() if model.chat_template() else ("this model has no chat template: the prompt is continued as plain text",),
        )
        self._tell(request, loaded)

    def _open(self, request: int, plan: Plan) -> LoadedModel:
        """Raises what llama.cpp's log says of a failure."""
        try:
            model = LoadedModel(self._llama, plan, self._loading(request))
            model.open_context()
        except EngineError as error:
            raise load_failure(self._log.errors, plan.model.file) or error from None
        return model

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
        model = self._model
        if model is None:
            raise EngineError("no model is loaded", "load one first")
        model.rollback(0)
        model.sampling = wanted.sampling
        prompt, inside = _prompt(model, wanted.messages)
        meter = Meter(time.perf_counter, len(prompt), 0, self._load_seconds)
        reply = Reply(model, stop=wanted.stop, max_tokens=wanted.max_tokens, inside_reasoning=inside)
        if self._prefill(request, model, prompt):
            meter.prefilled()
            model.seconds = 0.0
            for parts in self._decode(request, model, prompt, reply, meter):
                self._send_text(request, parts)
        meter.engine_seconds(model.seconds)
        self._send_text(request, reply.end(self._cancelled.get(request, "length")))
        assert reply.finish is not None
        self._tell(request, Done(reply.finish, meter.stats()))

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

    def _decode(self, request: int, model: LoadedModel, prompt: list[int], reply: Reply, meter: Meter) -> Iterator[Parts]:
        steps = speculate(model, NoDraft(), prompt, seed=model.sampling.seed, depth=0, context=model.context)
        for step in steps:
            before = reply.tokens
            parts = reply.add(step.tokens)
            meter.emitted(reply.tokens - before, step.drafted, step.accepted)
            yield parts
            if reply.finish or request in self._cancelled:
                steps.close()

    def _tell(self, request: int, event: Event) -> None:
        self._write(wire.line(request, **wire.event_fields(event)))

    def _send_text(self, request: int, parts: Parts) -> None:
        for kind, text in parts:
            self._write(wire.text_line(request, kind, text))


def _prompt(model: LoadedModel, messages: tuple[Message, ...]) -> tuple[list[int], bool]:
    """The prompt's token ids, and whether it ends inside the reasoning tag."""
    template = model.chat_template()
    if template is None:
        return model.prompt_tokens("\n\n".join(message.content for message in messages)), False
    text = chat_template.render(template, messages, model.special_text("bos"), model.special_text("eos"))
    model.show_tags(THINK_TAGS)
    return model.prompt_tokens(text), text.rstrip().endswith(THINK_TAGS[0])


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
            write(_error_line(message["id"], DoesNotFit("the memory is full", "use a smaller --context")))


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

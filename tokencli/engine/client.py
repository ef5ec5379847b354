"""Starts the worker, speaks to it, and turns whatever becomes of it into events and errors. Imports no native library.

A dead worker is an EngineCrashed with its last log lines; a silent one is an EngineTimeout and is killed. No process stays.
"""

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tokencli import core
from tokencli.engine import wire
from tokencli.errors import EngineCrashed, EngineTimeout, Interrupted, TokencliError, from_kind

WORKER = (sys.executable, "-m", "tokencli.engine.worker")

# No sign of life for this long is a hang.
SILENCE_SECONDS = 300.0
# A first shader compilation took three minutes on a fast processor (report A7-03): where one may come, silence is told early
# and allowed for this many times as long.
QUIET_SECONDS = 5.0
_COMPILING = 3
# A generation asked to end does so at the next token, or after the batch of the prompt that it is at.
END_SECONDS = 10.0
_FIRST_TOKEN, _PROMPT = _FIRST_TOKENS = "decoding the first token", "reading the prompt"
_GRACE_SECONDS = 1.0


class Engine:
    """One worker process and its open request. Use as a context manager; not thread-safe."""

    def __init__(
        self,
        command: Sequence[str] = WORKER,
        environment: Mapping[str, str] | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        quiet_seconds: float = QUIET_SECONDS,
        end_seconds: float = END_SECONDS,
    ) -> None:
        self._silence = silence_seconds
        self._end = end_seconds
        self._quiet = quiet_seconds
        self._may_compile = False  # shaders, with the first tokens
        self._told_quiet = self._may_tell = False
        self._doing = "starting"
        self._request = 0
        self._asked_to_end: float | None = None
        self.interrupted = False  # by Ctrl-C while the last answer was generated, also too late to cut it
        self._last_sign = time.monotonic()
        self._log: collections.deque[str] = collections.deque(maxlen=40)
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {}), "GGML_NO_BACKTRACE": "1", "PYTHONUTF8": "1"},
            **_own_group(),
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_messages, self._read_log)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the worker is gone: whatever is asked for now is an EngineCrashed."""
        return self._process.poll() is not None

    @property
    def crashed_in_first_decode(self) -> bool:
        """Whether the worker died between the weights' arrival and its first decoded token (FACTS: AMX and GCC 12)."""
        return self._doing == _FIRST_TOKEN

    def peak_bytes(self) -> int | None:
        """Most memory that the worker's process has held so far; None where the system does not tell (only Linux does)."""
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return None
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)

    def devices(self, timeout: float | None = None) -> list[core.Device]:
        """The devices that the linked llama.cpp lists. Raises EngineError."""
        self._doing = "listing devices"
        (message,) = self._ask("devices", timeout=timeout)
        return [core.Device(**device) for device in message["devices"]]

    def tensor_limit(self, device: str, timeout: float | None = None) -> int | None:
        """The largest matrix in bytes that a device multiplies with, None where there is no limit. Raises EngineError."""
        self._doing = "asking a device for its limits"
        (message,) = self._ask("tensor_limit", timeout=timeout, device=device)
        limit: int | None = message["bytes"]
        return limit

    def dry_run(self, plan: core.Plan, timeout: float | None = None) -> core.DryRun:
        """What llama.cpp would reserve for the plan, and where it would put it. Raises EngineError, DoesNotFit."""
        self._doing = "planning"
        (message,) = self._ask("dry_run", timeout=timeout, plan=plan)
        return wire.dry_run(message["dry_run"])

    def expect_compiling(self) -> None:
        """Let a model's first tokens take as long as shaders may need, and tell of the silence (a Quiet event, once)."""
        self._may_compile = True

    def load(self, plan: core.Plan, timeout: float | None = None, pace: Mapping[str, Any] | None = None) -> Iterator[core.Event]:
        """Load a model: Loading events, then one Loaded. Raises EngineError, DoesNotFit, BadModelFile.

        `pace`: what the Done of an earlier answer told of the same models.
        """
        self._doing = "loading the model"
        for message in self._ask("load", timeout=timeout, plan=plan, pace=pace):
            if message["is"] == "Testing":
                self._doing = _FIRST_TOKEN
            else:
                yield wire.event(message)

    def generate(self, request: core.Request, timeout: float | None = None) -> Iterator[core.Event]:
        """Generate one answer: Prefilling and Text events, then one Done. Close it to stop early.

        After `timeout` seconds the answer ends with finish_reason "timeout", what was written kept. Raises EngineError,
        DoesNotFit; Interrupted instead of any of them once Ctrl-C has asked for the end: the worker may be gone then.
        """
        self._doing = _PROMPT
        self.interrupted = False
        with _on_interrupt(self._interrupted):
            try:
                for message in self._ask("generate", timeout=timeout, request=request):
                    if message["is"] == "Text":
                        self._doing = "generating"
                    yield wire.event(message)
            except TokencliError:
                if self.interrupted:
                    raise Interrupted("interrupted") from None
                raise

    def count(self, request: core.Request, timeout: float | None = None) -> int:
        """Tokens of the request's prompt. Raises EngineError, BadModelFile where the chat template fails."""
        self._doing = _PROMPT
        (message,) = self._ask("count", timeout=timeout, request=request)
        return int(message["count"])

    def throughput(self, tokens: int, depth: int, *, at_once: bool) -> float:
        """Seconds that `tokens` random tokens take behind `depth` others, read at once or one by one. Raises EngineError."""
        self._doing = "reading random tokens"
        *_, message = self._ask("throughput", tokens=tokens, depth=depth, at_once=at_once)
        return float(message["seconds"])

    def score(
        self, text: str, length: int, most: int, keep: Path | None = None, against: Path | None = None
    ) -> Iterator[core.Event]:
        """What each token of a text costs: Prefilling events, and a Scored for each of up to `most` chunks of `length` tokens.

        `keep`: a folder that the logits are written to; `against`: one that another model's were written to, to be compared with.
        Raises EngineError, UsageError for a text of less than a chunk or one that the two read in other tokens, DoesNotFit.
        """
        self._doing = "reading the text"
        kept, compared = (str(folder) if folder else None for folder in (keep, against))
        for message in self._ask("score", text=text, length=length, most=most, keep=kept, against=compared):
            if message["is"] != "Count":
                yield wire.event(message)

    def save_state(self, file: Path) -> int:
        """Write the model's memory to a file; how many tokens it holds. Raises EngineError."""
        self._doing = "saving its state"
        (message,) = self._ask("save_state", file=str(file))
        return int(message["count"])

    def load_state(self, file: Path) -> int:
        """Take up a memory written by `save_state` with the same model and settings. Raises EngineError: nothing is held then."""
        self._doing = "taking up its state"
        (message,) = self._ask("load_state", file=str(file))
        return int(message["count"])

    def cancel(self, reason: core.FinishReason = "cancelled") -> None:
        """Ask the worker to end the open request at the next token."""
        with contextlib.suppress(OSError, ValueError):  # not through the buffer: this may come from a signal handler
            os.write(self._process.stdin.fileno(), wire.line(self._request, do="cancel", reason=reason))  # type: ignore[union-attr]

    def close(self) -> None:
        """End the worker: first by closing its stdin, then by force. Never raises, leaves no process."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
        for reader in self._readers:
            reader.join(_GRACE_SECONDS)
        for stream in (self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    # inside

    def _ask(self, do: str, timeout: float | None = None, **fields: Any) -> Iterator[dict[str, Any]]:
        """Send a request and yield its messages up to the last. Closing the iterator early cancels the request."""
        self._request += 1
        self._last_sign = time.monotonic()
        self._asked_to_end = None
        self._may_tell = do in ("load", "generate")
        self._write(wire.line(self._request, do=do, **fields))
        deadline = time.monotonic() + timeout if timeout is not None else None
        finished = False
        try:
            while not finished:
                message = self._receive_or_interrupt(deadline, generating=do == "generate")
                if message["id"] != self._request:
                    continue  # the rest of a request that was given up
                finished = message["is"] in wire.LAST
                if message["is"] == "Error":
                    raise from_kind(message["kind"], message["what"], message["hint"])
                yield message
        except GeneratorExit:
            self.cancel()
            raise

    def _receive_or_interrupt(self, deadline: float | None, generating: bool) -> dict[str, Any]:
        try:
            return self._receive(deadline, generating)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None

    def _interrupted(self, *_signal: object) -> None:
        """Ctrl-C while generating, wherever the program is: the first asks for the end and waits, a second one ends all."""
        self.interrupted = True
        if self._asked_to_end is not None:
            raise KeyboardInterrupt
        self._ask_to_end("cancelled")

    def _ask_to_end(self, reason: core.FinishReason) -> None:
        self._asked_to_end = time.monotonic()
        self.cancel(reason)

    def _receive(self, deadline: float | None, generating: bool) -> dict[str, Any]:
        """The next message. At the deadline a generation is asked to end, anything else is given up."""
        while True:
            now = time.monotonic()
            if self._asked_to_end is not None:
                deadline = self._asked_to_end + self._end
            if deadline is not None and now >= deadline:
                if not generating or self._asked_to_end is not None:
                    self._give_up(f"did not finish {self._doing} in the time allowed", "give --timeout more seconds")
                self._ask_to_end("timeout")
                continue
            compiling = self._may_compile and self._doing in _FIRST_TOKENS
            silence = self._silence * (_COMPILING if compiling else 1)
            if now - self._last_sign > silence:
                hint = "try --gpu-layers 0; a very slow disk needs a second try"
                self._give_up(f"has given no sign of life for {silence:g} s while {self._doing}", hint)
            limits = [self._last_sign + silence, *([deadline] if deadline is not None else [])]
            if compiling and self._may_tell and not self._told_quiet:
                if now - self._last_sign > self._quiet:
                    self._told_quiet = True
                    return {"id": self._request, "is": "Quiet", "seconds": self._quiet}
                limits.append(self._last_sign + self._quiet)
            try:
                message = self._inbox.get(timeout=min(max(0.01, min(limits) - now + 0.01), 1.0))  # an interrupt may set a limit
            except queue.Empty:
                continue
            if message is None:
                self._crashed()
            self._last_sign = time.monotonic()
            return message

    def _write(self, raw: bytes) -> None:
        try:
            self._process.stdin.write(raw)  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except (OSError, ValueError):
            pass  # the worker is gone: reading tells how

    def _read_messages(self) -> None:
        try:
            for raw in self._process.stdout or ():
                self._inbox.put(json.loads(raw))
        except ValueError:
            pass  # it died in the middle of a line: the end, like any other
        finally:
            self._inbox.put(None)

    def _read_log(self) -> None:
        for raw in self._process.stderr or ():
            self._last_sign = time.monotonic()
            self._log.append(raw.decode("utf-8", "replace").rstrip())

    def _crashed(self) -> NoReturn:
        self._inbox.put(None)  # every later request ends here too
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        self._readers[1].join(_GRACE_SECONDS)
        lines = tuple(line for line in self._log if line.strip())
        last = f": {lines[-1].strip()}" if lines else ""
        how = _how_it_ended(self._process.returncode)
        raise EngineCrashed(f"the engine {how} while {self._doing}{last}", "try --gpu-layers 0 or a smaller --context", lines)

    def _give_up(self, what: str, hint: str) -> NoReturn:
        self._kill()
        raise EngineTimeout(f"the engine {what}", hint, tuple(self._log))

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)


@contextlib.contextmanager
def _on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    """SIGINT goes to `handler` inside the block, in the main thread (no other one gets signals)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _own_group() -> dict[str, Any]:
    """Popen's arguments that keep the terminal's Ctrl-C away from the worker."""
    if os.name == "posix":
        return {"start_new_session": True}
    return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined]  # Windows, untested


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

"""What a person or a program sees of the events of a run. Renders, decides nothing."""

import dataclasses
import json
from typing import Any

from tokencli.cli.terminal import Terminal
from tokencli.core import Done, Fetching, Loading, Note, Plan, Planned, Prefilling, Stats, Text, Verifying
from tokencli.core import Event as RunEvent
from tokencli.decode.text import EscapeStripper
from tokencli.errors import TokencliError

_CLEAR_LINE = "\r\x1b[K"
_DIM, _DRAFTED, _RESET = "\x1b[2m", "\x1b[32m", "\x1b[0m"


class RunView:
    """Shows the events of one `run` as they come. The answer goes to stdout; everything else to stderr.

    With `as_json` nothing is shown but progress, and `close` prints the one object. With `quiet` stderr gets only errors.
    """

    def __init__(self, terminal: Terminal, *, quiet: bool, as_json: bool) -> None:
        self._terminal = terminal
        self._quiet = quiet
        self._json = as_json
        self._answer = _Channel(terminal.shows_answer)
        self._thoughts = _Channel(terminal.stderr.isatty())
        self._parts: dict[str, list[str]] = {"answer": [], "reasoning": []}
        self._progress = Progress(terminal, quiet=quiet)
        self._thinking = False
        self.plan: Plan | None = None
        self.done: Done | None = None

    def show(self, event: RunEvent) -> None:
        match event:
            case Note() | Fetching() | Verifying():
                self._progress.show(event)
            case Loading(fraction):
                self._progress.line(f"loading {100 * fraction:3.0f} %")
            case Prefilling(done, total) if done:
                self._progress.line(f"reading the prompt: {done} of {total} tokens")
            case Planned(plan):
                self.plan = plan
                self._progress.line("reading the prompt")
            case Text(kind, text, drafted):
                self._parts[kind].append(text)
                self._show_text(kind, text, drafted)
            case Done():
                self.done = event

    def close(self) -> None:
        """End the output: rest of the text, the summary line, or the JSON object."""
        self._progress.clear()
        if self._json:
            self._terminal.stdout.write(json.dumps(self._object(), ensure_ascii=False) + "\n")
        else:
            self._write_answer(self._answer.flush())
            self._end_thinking()
            if any(self._parts["answer"]):
                self._terminal.stdout.write("\n")
        self._terminal.stdout.flush()
        if self.done and self.plan and not self._quiet and not self._json:
            self._line(summary(self.plan, self.done))

    def abandon(self) -> None:
        """An error ended the run: keep what was printed, leave the cursor on a line of its own."""
        self._progress.clear()
        if self._json:
            return
        self._end_thinking()
        if any(self._parts["answer"]):
            self._write_answer(self._answer.flush() + "\n")

    def _object(self) -> dict[str, Any]:
        return {
            "text": "".join(self._parts["answer"]),
            "reasoning": "".join(self._parts["reasoning"]) or None,
            "finish_reason": self.done.finish_reason if self.done else "cancelled",
            "plan": plan_json(self.plan) if self.plan else None,
            "stats": stats_json(self.done.stats) if self.done else None,
        }

    def _show_text(self, kind: str, text: str, drafted: bool) -> None:
        self._progress.clear()
        if self._json:
            return
        if kind == "answer":
            self._end_thinking()
            shown = self._answer.feed(text)
            coloured = drafted and shown and self._terminal.colours_answer
            self._write_answer(f"{_DRAFTED}{shown}{_RESET}" if coloured else shown)
        elif not self._quiet:
            self._write_thought(self._thoughts.feed(text))

    def _write_answer(self, text: str) -> None:
        if text:
            self._terminal.stdout.write(text)
            self._terminal.stdout.flush()

    def _write_thought(self, text: str) -> None:
        dim = _DIM if self._terminal.shows_colour and not self._thinking else ""
        self._thinking = True
        self._terminal.stderr.write(dim + text)
        self._terminal.stderr.flush()

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            reset = _RESET if self._terminal.shows_colour else ""
            self._terminal.stderr.write(self._thoughts.flush() + reset + "\n\n")
            self._terminal.stderr.flush()

    def _line(self, text: str) -> None:
        self._terminal.stderr.write(one_line(text) + "\n")
        self._terminal.stderr.flush()


class Progress:
    """What is told while something is fetched or read, on stderr: notes, and a line that moves where a person looks on."""

    def __init__(self, terminal: Terminal, *, quiet: bool) -> None:
        self._terminal = terminal
        self._quiet = quiet
        self._moving = False

    def show(self, event: RunEvent) -> None:
        match event:
            case Fetching():
                self.line(fetching(event))
            case Verifying(done, total):
                self.line(f"checking the hash: {100 * done / max(total, 1):3.0f} %")
            case Note(text):
                self.note(text)

    def note(self, text: str) -> None:
        self.clear()
        if not self._quiet:
            self._terminal.stderr.write(one_line(f"note: {text}") + "\n")
            self._terminal.stderr.flush()

    def line(self, text: str) -> None:
        if self._terminal.shows_progress and not self._quiet:
            self._terminal.stderr.write(f"{_CLEAR_LINE}{text}")
            self._terminal.stderr.flush()
            self._moving = True

    def clear(self) -> None:
        if self._moving:
            self._terminal.stderr.write(_CLEAR_LINE)
            self._terminal.stderr.flush()
            self._moving = False


class _Channel:
    """Model text on its way to a stream: stripped of terminal escapes where a terminal would obey them."""

    def __init__(self, is_terminal: bool) -> None:
        self._stripper = EscapeStripper() if is_terminal else None

    def feed(self, text: str) -> str:
        return self._stripper.feed(text) if self._stripper else text

    def flush(self) -> str:
        return self._stripper.flush() if self._stripper else ""


def summary(plan: Plan, done: Done) -> str:
    """The one line under an answer: what it cost, and where the layers are."""
    stats = done.stats
    ended = {"stop": "", "length": " (cut at the limit)", "timeout": " (cut by --timeout)", "cancelled": " (interrupted)"}
    parts = [
        f"{stats.tokens} tokens{ended[done.finish_reason]}",
        f"TTFT {_number(stats.ttft_seconds, 2)} s",
        f"prefill {_number(stats.prefill_tokens_per_second, 1)} tokens/s",
        f"decode {_number(stats.decode_tokens_per_second, 1)} tokens/s",
        *_drafting(stats),
        placement(plan),
    ]
    return " | ".join(parts)


def _drafting(stats: Stats) -> list[str]:
    if stats.acceptance is None:
        return []
    return [f"draft {stats.accepted} of {stats.drafted} accepted ({100 * stats.acceptance:.0f} %)"]


def placement(plan: Plan) -> str:
    if not plan.gpu_layers:
        return "all layers on the CPU"
    return f"{plan.gpu_layers} of {plan.model.offloadable_layers} layers on {plan.device}"


def fetching(event: Fetching) -> str:
    """How far a download is, how fast it is, and how long it will take."""
    shown = f"downloading {event.done / 1e9:.2f} of {event.total / 1e9:.2f} GB"
    if not event.bytes_per_second:
        return shown
    left = round((event.total - event.done) / event.bytes_per_second)
    return f"{shown}, {event.bytes_per_second / 1e6:.1f} MB/s, {_span(left)} left"


def _span(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h {seconds % 3600 // 60} min"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def plan_json(plan: Plan) -> dict[str, Any]:
    """PLAN of the JSON contract (DESIGN, What the command line promises)."""
    fields = dataclasses.asdict(plan)
    model = fields["model"]
    fields["model"] = {key: model[key] for key in ("name", "file", "quant", "architecture", "bytes")}
    fields["devices"] = [{**dataclasses.asdict(place), "total": place.total} for place in plan.devices]
    return fields


def stats_json(stats: Stats) -> dict[str, Any]:
    """STATS of the JSON contract."""
    return {**dataclasses.asdict(stats), "acceptance": stats.acceptance}


def error_line(error: TokencliError) -> str:
    parts = (one_line(part) for part in (f"error: {error.what}", error.hint) if part)
    return "; ".join(parts)


def error_json(error: TokencliError) -> str:
    described = {"code": error.exit_code, "kind": error.kind, "what": error.what, "hint": error.hint, "log": list(error.log)}
    return json.dumps({"error": described}, ensure_ascii=False)


def one_line(text: str) -> str:
    """Text safe for one line of a terminal: file names and log lines may hold anything."""
    return EscapeStripper().feed(" ".join(text.split()))

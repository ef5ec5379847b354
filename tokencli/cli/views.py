"""What a person or a program sees of the events of a run. Renders, decides nothing."""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from tokencli.cli.answer import PlainView
from tokencli.cli.terminal import Terminal
from tokencli.core import Done, Fetching, Gain, Loading, Note, Plan, Planned, Prefilling, Stats, Text, TextKind, Verifying
from tokencli.core import Event as RunEvent
from tokencli.decode.text import EscapeStripper
from tokencli.errors import TokencliError

_DIM, _RESET = "\x1b[2m", "\x1b[0m"


class RunView:
    """Shows the events of one `run` as they come. The answer goes to stdout; everything else to stderr.

    With `as_json` nothing is shown but progress, and `close` prints the one object. With `quiet` stderr gets only errors.
    `with_chart`: how the draft did, on stderr in any case.
    """

    def __init__(self, terminal: Terminal, *, quiet: bool, as_json: bool, with_chart: bool = False) -> None:
        self._terminal = terminal
        self._quiet = quiet
        self._with_chart = with_chart
        self._json = as_json
        self._aside = Aside(terminal, quiet=quiet)
        self._text = PlainView(terminal)
        self._parts: dict[str, list[str]] = {"answer": [], "reasoning": []}
        self.plan: Plan | None = None
        self.done: Done | None = None

    def show(self, event: RunEvent) -> None:
        match event:
            case Note(text):
                self._text.clear_status()
                self._aside.line(f"note: {text}")
            case Loading() | Prefilling() | Fetching() | Verifying():
                self._show_progress(progress(event))
            case Planned(plan):
                self.plan = plan
                self._show_progress("reading the prompt")
            case Text(kind, text, drafted):
                self._parts[kind].append(text)
                self._show_text(kind, text, drafted)
            case Done():
                self.done = event

    def close(self) -> None:
        """End the output: rest of the text, the summary line, or the JSON object."""
        self._text.finish()
        if self._json:
            self._terminal.stdout.write(json.dumps(self._object(), ensure_ascii=False) + "\n")
            self._terminal.stdout.flush()
        if self.done and self.plan and not self._json:
            self._aside.line(summary(self.plan, self.done))
        if self.done and self._with_chart:
            self._aside.table(chart(self.done.stats))

    def abandon(self) -> None:
        """An error ended the run: keep what was printed, leave the cursor on a line of its own."""
        self._text.finish()

    def _object(self) -> dict[str, Any]:
        return {
            "text": "".join(self._parts["answer"]),
            "reasoning": "".join(self._parts["reasoning"]) or None,
            "finish_reason": self.done.finish_reason if self.done else "cancelled",
            "plan": plan_json(self.plan) if self.plan else None,
            "stats": stats_json(self.done.stats) if self.done else None,
        }

    def _show_text(self, kind: TextKind, text: str, drafted: bool) -> None:
        if self._json or (self._quiet and kind == "reasoning"):
            self._text.clear_status()
        else:
            self._text.feed(kind, text, drafted)

    def _show_progress(self, text: str) -> None:
        if text and not self._quiet:
            self._text.status(text)


class Aside:
    """What stands beside the answer, on stderr, a line each. With `quiet` only errors and what was asked for are shown."""

    def __init__(self, terminal: Terminal, *, quiet: bool) -> None:
        self._terminal = terminal
        self.quiet = quiet

    def line(self, text: str, *, dim: bool = False) -> None:
        if not self.quiet:
            shown = one_line(text)
            self._write(f"{_DIM}{shown}{_RESET}" if dim and self._terminal.shows_colour else shown)

    def error(self, error: TokencliError) -> None:
        self._write(error_line(error))

    def table(self, lines: Iterable[str]) -> None:
        """Lines asked for, their spaces kept."""
        for line in lines:
            self._write(EscapeStripper().feed(line))

    def _write(self, line: str) -> None:
        self._terminal.stderr.write(line + "\n")
        self._terminal.stderr.flush()


class Progress:
    """What is told while something is fetched, where no answer is awaited: notes, and a line that moves."""

    def __init__(self, terminal: Terminal, *, quiet: bool) -> None:
        self._text = PlainView(terminal)
        self._aside = Aside(terminal, quiet=quiet)

    def show(self, event: RunEvent) -> None:
        match event:
            case Note(text):
                self._text.clear_status()
                self._aside.line(f"note: {text}")
            case Loading() | Prefilling() | Fetching() | Verifying():
                self.tell(progress(event))

    def tell(self, what: str) -> None:
        """What goes on now, on the line that moves."""
        if not self._aside.quiet:
            self._text.status(what)

    def clear(self) -> None:
        self._text.clear_status()


def progress(event: Loading | Prefilling | Fetching | Verifying) -> str:
    """What goes on, in a few words; empty where it has only begun."""
    match event:
        case Loading(fraction):
            return f"loading {100 * fraction:3.0f} %"
        case Prefilling(done, total):
            return f"reading the prompt: {done} of {total} tokens" if done else ""
        case Verifying(done, total):
            return f"checking the hash: {100 * done / max(total, 1):3.0f} %"
        case Fetching():
            return fetching(event)


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
    experts = f", experts of {plan.cpu_moe_layers} blocks on the CPU" if plan.cpu_moe_layers else ""
    return f"{plan.gpu_layers} of {plan.model.offloadable_layers} layers on {plan.device}{experts}"


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


def rounded(number: float) -> str:
    """Two digits: a prediction has no more."""
    return f"{float(f'{number:.1e}'):g}"


def size(size: int | None) -> str:
    """Bytes in people's units."""
    if size is None:
        return "?"
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"


def plan_json(plan: Plan) -> dict[str, Any]:
    """PLAN of the JSON contract (DESIGN, What the command line promises)."""
    fields = dataclasses.asdict(plan)
    model = fields["model"]
    fields["model"] = {key: model[key] for key in ("name", "file", "quant", "architecture", "bytes")}
    fields["devices"] = [{**dataclasses.asdict(place), "total": place.total} for place in plan.devices]
    return fields


def stats_json(stats: Stats) -> dict[str, Any]:
    """STATS of the JSON contract."""
    return {**dataclasses.asdict(stats), "depths": list(stats.depths), "acceptance": stats.acceptance}


_BARS = "▁▂▃▄▅▆▇█"


def chart(stats: Stats) -> list[str]:
    """What `--stats` shows of the draft: its depth as the answer went on, where the time went, and what it brought."""
    if not stats.depths:
        return ["draft  nothing was guessed"]
    deepest = max(stats.depths)
    bars = "".join(_BARS[round((len(_BARS) - 1) * depth / deepest)] if depth else " " for depth in stats.depths)
    seconds = (stats.draft_seconds or 0.0, stats.verify_seconds or 0.0, stats.python_seconds or 0.0)
    shares = [f"{100 * each / (sum(seconds) or 1.0):.0f} %" for each in seconds]
    return [
        f"depth  |{bars}| up to {deepest:g} guesses at once, {_number(stats.accepted_length, 1)} of them right",
        f"time   draft {shares[0]}, verify {shares[1]}, Python {shares[2]}",
        f"gain   {_gain(stats.gain)}",
    ]


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return "unknown: too few rounds went without a draft"
    return f"{gain.value:.2f}x plain decoding ({gain.low:.2f} to {gain.high:.2f}, by {gain.plain_rounds} rounds without a draft)"


def error_line(error: TokencliError) -> str:
    parts = (one_line(part) for part in (f"error: {error.what}", error.hint) if part)
    return "; ".join(parts)


def error_json(error: TokencliError) -> str:
    described = {"code": error.exit_code, "kind": error.kind, "what": error.what, "hint": error.hint, "log": list(error.log)}
    return json.dumps({"error": described}, ensure_ascii=False)


def one_line(text: str) -> str:
    """Text safe for one line of a terminal: file names and log lines may hold anything."""
    return EscapeStripper().feed(" ".join(text.split()))

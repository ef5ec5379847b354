"""What is printed, where, and in which form: the answer on stdout, everything else on stderr, and the JSON contract."""

import dataclasses
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pytest

from tokencli.cli.terminal import Terminal
from tokencli.cli.views import RunView, chart, error_json, error_line, plan_json, stats_json, summary
from tokencli.core import (
    DeviceBytes,
    Done,
    Draft,
    Event,
    Gain,
    Loading,
    Model,
    Note,
    Percentiles,
    Plan,
    Planned,
    Prediction,
    Prefilling,
    Stats,
    Text,
)
from tokencli.errors import DoesNotFit, EngineCrashed

STATS = Stats(
    prompt_tokens=100,
    cached_tokens=0,
    tokens=42,
    load_seconds=1.5,
    ttft_seconds=0.256,
    prefill_tokens_per_second=320.04,
    decode_tokens_per_second=12.34,
    itl_ms=Percentiles(80.0, 90.0, 99.0),
    tokens_per_emission=1.4,
    drafted=0,
    accepted=0,
    overhead_ms_per_token=0.1,
)
MODEL = Model("tiny", "/m/tiny.gguf", "Q8_0", "llama", 1000, layers=30, context_trained=8192)
ON_CPU = Plan(MODEL, backend="cpu", gpu_layers=0, context=4096, threads=8)
ON_GPU = dataclasses.replace(
    ON_CPU,
    backend="vulkan",
    gpu_layers=20,
    device="Vulkan0",
    draft=Draft("model", "/m/draft.gguf", "CPU", max_tokens=8, min_probability=0.75),
    devices=(DeviceBytes("Vulkan0", "gpu", weights=500, kv=40, recurrent=30, compute=20, output=10, budget=2000),),
    predicted=Prediction(0.5, 300.0, 12.0, "predicted"),
    notes=("a note",),
)
DONE = Done("stop", STATS)
RUN: tuple[Event, ...] = (
    Note("a note"),
    Loading(0.5),
    Planned(ON_CPU),
    Prefilling(0, 100),
    Prefilling(64, 100),
    Text("reasoning", "why"),
    Text("answer", "Hello "),
    Text("answer", "world"),
    DONE,
)
SUMMARY = "42 tokens | TTFT 0.26 s | prefill 320.0 tokens/s | decode 12.3 tokens/s | all layers on the CPU\n"


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def shown(
    events: Sequence[Event],
    *,
    out: type[io.StringIO] = io.StringIO,
    err: type[io.StringIO] = io.StringIO,
    quiet: bool = False,
    as_json: bool = False,
    abandoned: bool = False,
    **environ: str,
) -> tuple[str, str]:
    """(stdout, stderr) of a run."""
    terminal = Terminal(io.StringIO(), out(), err(), environ)
    view = RunView(terminal, quiet=quiet, as_json=as_json)
    for event in events:
        view.show(event)
    if abandoned:
        view.abandon()
    else:
        view.close()
    return terminal.stdout.getvalue(), terminal.stderr.getvalue()


class TestRun:
    def test_the_answer_goes_to_stdout_and_everything_else_to_stderr(self) -> None:
        assert shown(RUN) == ("Hello world\n", f"note: a note\nwhy\n\n{SUMMARY}")

    def test_quiet_leaves_the_answer(self) -> None:
        assert shown(RUN, quiet=True) == shown(RUN, quiet=True, err=Screen) == ("Hello world\n", "")

    def test_a_terminal_sees_progress_that_goes_away_and_dim_reasoning(self) -> None:
        out, err = shown(RUN, err=Screen)
        progress = "\r\x1b[Kloading  50 %\r\x1b[Kreading the prompt\r\x1b[Kreading the prompt: 64 of 100 tokens\r\x1b[K"
        assert out == "Hello world\n"
        assert err == f"note: a note\n{progress}\x1b[2mwhy\x1b[0m\n\n{SUMMARY}"

    def test_no_color_leaves_progress_without_colour(self) -> None:
        _, err = shown(RUN, err=Screen, NO_COLOR="1")
        assert "\x1b[2m" not in err
        assert "loading  50 %" in err
        assert "\x1b[2m" in shown(RUN, err=Screen, NO_COLOR="")[1], "an empty NO_COLOR is none (no-color.org)"

    def test_a_dumb_terminal_gets_no_escape_sequences(self) -> None:
        assert shown(RUN, err=Screen, TERM="dumb") == shown(RUN)

    def test_progress_is_gone_before_a_note_or_the_answer_comes(self) -> None:
        _, err = shown([Loading(1), Note("careful"), Loading(1), Text("answer", "x")], err=Screen)
        assert err.split("\r\x1b[K") == ["", "loading 100 %", "note: careful\n", "loading 100 %", ""]

    @pytest.mark.parametrize(("events", "out"), [([DONE], ""), ([Planned(ON_CPU), Text("reasoning", "why"), DONE], "")])
    def test_no_answer_is_no_line(self, events: list[Event], out: str) -> None:
        assert shown(events)[0] == out

    def test_a_failure_keeps_what_was_printed_and_ends_its_line(self) -> None:
        assert shown([*RUN[:-1]], abandoned=True) == ("Hello world\n", "note: a note\nwhy\n\n")
        assert shown([Loading(0.5)], err=Screen, abandoned=True) == ("", "\r\x1b[Kloading  50 %\r\x1b[K")
        assert shown([*RUN[:-1]], abandoned=True, as_json=True)[0] == ""

    def test_model_text_cannot_command_a_terminal(self) -> None:
        events = [
            Text("reasoning", "a\x1b]52;c;Z"),
            Text("reasoning", "X\x07b"),
            Text("answer", "c\x1b["),
            Text("answer", "2Jd\x1b"),
        ]
        assert shown(events, out=Screen, err=Screen, TERM="dumb") == ("cd\n", "ab\n\n")

    def test_a_file_or_pipe_gets_model_text_as_it_is(self) -> None:
        assert shown([Text("answer", "\x1b[31mred\x1b")], err=Screen)[0] == "\x1b[31mred\x1b\n"

    def test_notes_are_one_line_without_escapes(self) -> None:
        assert shown([Note("a\nb\x1b[2Jc\x07\r")])[1] == "note: a bc\n"


class TestSummary:
    @pytest.mark.parametrize(
        ("finish", "words"),
        [("stop", "42 tokens |"), ("length", "cut at the limit"), ("timeout", "cut by --timeout"), ("cancelled", "interrupted")],
    )
    def test_it_says_why_the_answer_ended(self, finish: str, words: str) -> None:
        assert words in summary(ON_CPU, Done(finish, STATS))

    def test_it_says_where_the_layers_are(self) -> None:
        assert summary(ON_GPU, DONE).endswith("| 20 of 31 layers on Vulkan0")

    def test_it_says_whose_experts_are_not_there(self) -> None:
        mixture = dataclasses.replace(ON_GPU, cpu_moe_layers=12)
        assert summary(mixture, DONE).endswith("| 20 of 31 layers on Vulkan0, experts of 12 blocks on the CPU")

    def test_what_was_not_measured_is_a_dash_and_no_zero(self) -> None:
        nothing = Stats(0, 0, 0, 0.0, None, None, None, None, None, 0, 0, None)
        assert summary(ON_CPU, Done("stop", nothing)).startswith("0 tokens | TTFT - s | prefill - tokens/s | decode - tokens/s |")


# The JSON contract of DESIGN (What the command line promises), written out: keys may be added, never renamed or removed.

PLAN_KEYS = {
    "model", "profile", "backend", "gpu_layers", "cpu_moe_layers", "context", "kv_type", "batch", "ubatch", "flash_attention",
    "threads", "draft", "devices", "predicted", "notes", "device", "extra_buffers",
}  # fmt: skip
MODEL_KEYS = {"name", "file", "quant", "architecture", "bytes"}
DRAFT_KEYS = {"kind", "file", "device", "max_tokens", "min_probability", "adaptive"}
DEVICE_KEYS = {"id", "kind", "weights", "kv", "recurrent", "compute", "output", "draft", "total", "budget"}
PREDICTED_KEYS = {"ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "origin"}
STATS_KEYS = {
    "prompt_tokens", "cached_tokens", "tokens", "load_seconds", "ttft_seconds", "prefill_tokens_per_second",
    "decode_tokens_per_second", "itl_ms", "tokens_per_emission", "drafted", "accepted", "acceptance", "bandwidth_share",
    "overhead_ms_per_token", "accepted_length", "draft_seconds", "verify_seconds", "python_seconds", "depths", "gain",
}  # fmt: skip


class TestJson:
    def test_a_run_is_one_object_on_one_line_and_nothing_else_on_stdout(self) -> None:
        out, err = shown(RUN, as_json=True, out=Screen, err=Screen)
        assert out.count("\n") == 1
        assert "42 tokens" not in err
        assert "why" not in err
        assert json.loads(out) == {
            "text": "Hello world",
            "reasoning": "why",
            "finish_reason": "stop",
            "plan": json.loads(json.dumps(plan_json(ON_CPU))),
            "stats": stats_json(STATS),
        }

    def test_what_there_was_not_is_null(self) -> None:
        found = json.loads(shown([Planned(ON_CPU), DONE], as_json=True)[0])
        assert (found["text"], found["reasoning"], found["plan"]["draft"]) == ("", None, None)
        interrupted = json.loads(shown([Text("answer", "half")], as_json=True)[0])
        assert interrupted == {"text": "half", "reasoning": None, "finish_reason": "cancelled", "plan": None, "stats": None}

    def test_text_is_whole_and_readable(self) -> None:
        out, _ = shown([Text("answer", "你好 🙂\x1b[31m\n")], as_json=True, out=Screen)
        assert json.loads(out)["text"] == "你好 🙂\x1b[31m\n"
        assert "你好 🙂" in out
        assert "\x1b" not in out

    def test_the_keys_of_a_plan(self) -> None:
        found = plan_json(ON_GPU)
        assert set(found) >= PLAN_KEYS
        assert set(found["model"]) >= MODEL_KEYS
        assert set(found["draft"]) >= DRAFT_KEYS
        assert all(set(place) >= DEVICE_KEYS for place in found["devices"])
        assert set(found["predicted"]) >= PREDICTED_KEYS
        assert found["devices"][0]["total"] == 600
        assert list(found["notes"]) == ["a note"]

    def test_the_keys_of_stats(self) -> None:
        found = stats_json(dataclasses.replace(STATS, drafted=8, accepted=6))
        assert set(found) >= STATS_KEYS
        assert found["itl_ms"] == {"p50": 80.0, "p90": 90.0, "p99": 99.0}
        assert (found["acceptance"], found["bandwidth_share"]) == (0.75, None)

    def test_a_failure_is_an_object_too(self) -> None:
        found = json.loads(error_json(EngineCrashed("it died\nbadly", "try again", ("last line",))))
        assert found == {
            "error": {"code": 1, "kind": "EngineCrashed", "what": "it died\nbadly", "hint": "try again", "log": ["last line"]}
        }


class TestErrors:
    def test_an_error_is_one_line_with_its_hint(self) -> None:
        assert error_line(DoesNotFit("too big", "use less")) == "error: too big; use less"
        assert error_line(DoesNotFit("too big")) == "error: too big"
        assert error_line(DoesNotFit("no file a\nb\x1b[2J.gguf", "look\r")) == "error: no file a b.gguf; look"

    def test_a_file_name_cannot_hide_the_rest_of_the_line(self) -> None:
        assert error_line(DoesNotFit("no file \x1b]0;.gguf", "use less")).endswith("use less")


class TestTerminal:
    @pytest.mark.parametrize(
        ("err", "environ", "progress", "colour"),
        [
            (Screen, {}, True, True),
            (Screen, {"TERM": "xterm-256color"}, True, True),
            (Screen, {"NO_COLOR": "1"}, True, False),
            (Screen, {"TERM": "dumb"}, False, False),
            (io.StringIO, {}, False, False),
        ],
    )
    def test_progress_and_colour_are_for_terminals(
        self, err: type[io.StringIO], environ: dict[str, str], progress: bool, colour: bool
    ) -> None:
        terminal = Terminal(io.StringIO(), Screen(), err(), environ)
        assert (terminal.shows_answer, terminal.shows_progress, terminal.shows_colour) == (True, progress, colour)

    @staticmethod
    def piped_text(stdin: TextIO | None) -> str | None:
        return Terminal(stdin, io.StringIO(), io.StringIO(), {}).piped_text()

    def test_a_pipe_is_read_to_its_end(self) -> None:
        reader, writer = os.pipe()
        os.write(writer, "你好\n".encode())
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as stdin:
            assert self.piped_text(stdin) == "你好\n"

    def test_a_file_is_read_to_its_end(self, tmp_path: Path) -> None:
        (tmp_path / "prompt").write_text("Why?\nWhy?")
        with (tmp_path / "prompt").open() as stdin:
            assert self.piped_text(stdin) == "Why?\nWhy?"

    def test_other_streams_are_nobodys_prompt(self) -> None:
        with Path(os.devnull).open() as stdin:
            assert self.piped_text(stdin) is None
        assert self.piped_text(io.StringIO("no file")) is None

    def test_a_closed_stdin_is_nobodys_prompt(self) -> None:
        assert self.piped_text(None) is None


class TestChart:
    DRAFTED = dataclasses.replace(
        STATS, depths=(0.0, 2.0, 4.0, 8.0), accepted_length=2.5, draft_seconds=1.0, verify_seconds=2.5, python_seconds=0.5
    )

    def test_depth_time_and_gain(self) -> None:
        depth, time, gain = chart(dataclasses.replace(self.DRAFTED, gain=Gain(1.824, 1.7, 1.95, 7)))
        assert depth == "depth  | ▃▅█| up to 8 guesses at once, 2.5 of them right"
        assert time == "time   draft 25 %, verify 62 %, Python 12 %"
        assert gain == "gain   1.82x plain decoding (1.70 to 1.95, by 7 rounds without a draft)"

    def test_what_is_not_known_is_said(self) -> None:
        assert chart(self.DRAFTED)[-1] == "gain   unknown: too few rounds went without a draft"
        assert chart(STATS) == ["draft  nothing was guessed"]

    def test_it_stands_on_stderr_where_it_was_asked_for(self) -> None:
        for asked in (True, False):
            out, err = Screen(), Screen()
            view = RunView(Terminal(io.StringIO(), out, err, {}), quiet=True, as_json=False, with_chart=asked)
            for event in (Planned(ON_CPU), Text("answer", "hello"), Done("stop", self.DRAFTED)):
                view.show(event)
            view.close()
            assert ("up to 8 guesses" in err.getvalue()) == asked
            assert "guesses" not in out.getvalue()

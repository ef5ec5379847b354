"""`tokencli run` as a user meets it: streams, exit codes, JSON, signals, pipes, encodings."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import tiny_models
from tests.cli.conftest import COMMAND, Tokencli, one_error_line

SHORT = ("--max-tokens", "8", "--temperature", "0")

PLAN_KEYS = {
    "model", "profile", "backend", "gpu_layers", "cpu_moe_layers", "context", "kv_type", "batch", "ubatch", "flash_attention",
    "threads", "draft", "devices", "predicted", "notes",
}  # fmt: skip
STATS_KEYS = {
    "prompt_tokens", "cached_tokens", "tokens", "load_seconds", "ttft_seconds", "prefill_tokens_per_second",
    "decode_tokens_per_second", "itl_ms", "tokens_per_emission", "drafted", "accepted", "acceptance", "bandwidth_share",
}  # fmt: skip


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """A model that never ends by itself."""
    return str(tiny_models.scripted(tmp_path / "endless.gguf", [b"word "], end=False, context=1 << 20))


def test_the_answer_is_alone_on_stdout_and_the_summary_is_one_line_on_stderr(tokencli: Tokencli) -> None:
    result = tokencli("run", "smollm2-135m", "Why is the sky blue?", *SHORT)
    assert result.returncode == 0
    assert len(result.stdout.split()) > 3
    (summary,) = result.stderr.splitlines()
    for part in ("8 tokens (cut at the limit)", "TTFT ", "prefill ", "decode ", "all layers on the CPU"):
        assert part in summary
    assert "\x1b" not in result.stdout + result.stderr


def test_quiet_leaves_stderr_empty(tokencli: Tokencli) -> None:
    assert tokencli("run", "smollm2-135m", "Hi", "--quiet", *SHORT).stderr == ""


def test_json_is_one_object_with_the_promised_keys(tokencli: Tokencli) -> None:
    result = tokencli("run", "smollm2-135m", "Hi", "--json", *SHORT)
    answer = json.loads(result.stdout)
    assert set(answer) >= {"text", "reasoning", "finish_reason", "plan", "stats"}
    assert set(answer["plan"]) >= PLAN_KEYS
    assert set(answer["plan"]["model"]) == {"name", "file", "quant", "architecture", "bytes"}
    places = {"id", "kind", "weights", "kv", "recurrent", "compute", "output", "draft", "total", "budget"}
    assert all(set(place) == places for place in answer["plan"]["devices"])
    assert set(answer["stats"]) >= STATS_KEYS
    assert answer["finish_reason"] == "length"
    assert answer["stats"]["tokens"] == 8


def test_same_seed_same_text(tokencli: Tokencli) -> None:
    first, second, other = (
        tokencli("run", "smollm2-135m", "Tell a story.", "--seed", seed, "--temperature", "0.8", "--max-tokens", "30").stdout
        for seed in ("1", "1", "2")
    )
    assert first == second != other


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("missing.gguf", "hi"), 4, "there is no file missing.gguf"),
        (("page.gguf", "hi"), 4, "is a web page, not a model"),
        (("notes.md", "hi"), 4, "is not a GGUF file"),
        (("cut.gguf", "hi"), 4, "is cut short"),
        (("smollm2", "hi"), 4, "did you mean smollm2-135m?"),
        (("hf:repo", "hi"), 2, "does not name a model of the hub"),
        ((".", "hi"), 2, "holds 3 models"),
        (("smollm2-135m", "  "), 2, "the prompt is empty"),
        (("smollm2-135m",), 2, "the prompt is empty"),
        ((), 2, "no MODEL is named"),
        (("smollm2-135m", "hi", "--context", "-5"), 2, "--context -5 is out of range"),
        (("smollm2-135m", "hi", "--context", "many"), 2, "'--context'"),
        (("smollm2-135m", "hi", "--top-p", "1.5"), 2, "--top-p 1.5 is out of range"),
        (("smollm2-135m", "hi", "--gpu-layers", "few"), 2, "--gpu-layers few is neither a number nor all"),
        (("smollm2-135m", "hi", "--no-such-option"), 2, "--no-such-option"),
        (("smollm2-135m", "hi", "--file", "nowhere.txt"), 2, "nowhere.txt cannot be read"),
        (("smollm2-135m", "word " * 600, "--context", "256"), 3, "the context holds 256"),
    ],
)
def test_bad_input_is_one_line_and_the_promised_exit_code(
    tokencli: Tokencli, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html><html></html>")
    (tmp_path / "notes.md").write_text("# notes")
    whole = tiny_models.write(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    result = tokencli("run", *arguments, cwd=tmp_path)
    assert result.returncode == code
    assert says in one_error_line(result)
    failure = tokencli("run", *arguments, "--json", cwd=tmp_path)
    error = json.loads(failure.stdout)["error"]
    assert (failure.returncode, failure.stderr) == (code, "")
    assert error["code"] == code
    assert says in error["what"] + error["hint"]


def test_the_prompt_is_file_stdin_and_argument_in_this_order(tokencli: Tokencli, tmp_path: Path) -> None:
    model = tiny_models.write(tmp_path / "m.gguf", chat_template="{{ messages[0].content }}", add_bos=False)
    (tmp_path / "prompt.txt").write_text("FILE\n")
    options = ("--json", "--max-tokens", "1", "--temperature", "0")
    joined = tokencli("run", str(model), "ARG", "--file", str(tmp_path / "prompt.txt"), *options, input="STDIN\n")
    plain = tokencli("run", str(model), "FILE\n\nSTDIN\n\nARG", *options)
    assert json.loads(joined.stdout)["text"] == json.loads(plain.stdout)["text"]
    assert json.loads(joined.stdout)["stats"]["prompt_tokens"] == len("FILE\n\nSTDIN\n\nARG")


def test_a_long_context_than_the_model_was_trained_for_is_said(tokencli: Tokencli, tmp_path: Path) -> None:
    model = tiny_models.write(tmp_path / "m.gguf", context=512)
    result = tokencli("run", str(model), "hi", "--context", "1024", *SHORT)
    assert "a context of 1024 is more than the 512 the model was trained for" in result.stderr


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_any_locale_works_and_loses_nothing_in_a_pipe(tokencli: Tokencli, tmp_path: Path, environment: dict[str, str]) -> None:
    model = tiny_models.scripted(tmp_path / "m.gguf", ["天 🙂".encode()])
    result = tokencli("run", str(model), "hi", env=environment)
    assert (result.returncode, result.stdout) == (0, "天 🙂\n")


def worker_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """The engine's worker, as soon as it runs its own program: between fork and exec it is still the command's other half."""
    for _ in range(1000):
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "tokencli.engine.worker" in child.cmdline():
                    return child
        time.sleep(0.01)
    raise AssertionError("the worker did not start")


@contextlib.contextmanager
def started(model: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A command in the middle of its work, and its worker; whatever happened in between, no worker is left at the end."""
    command = [*COMMAND, "run", model, "hi", "--context", "200000", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            worker = worker_of(process)
            yield process, worker
        finally:
            process.kill()  # a test that fails must not wait for ever
    psutil.wait_procs([worker], timeout=2)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_worker_killed_in_mid_answer_costs_neither_the_text_nor_the_terminal(endless: str, how: signal.Signals) -> None:
    """The answer goes on after each crash, until the third."""
    shown = b""
    with started(endless) as (process, worker):
        for times in range(3):
            shown += process.stdout.read(1000)
            worker.send_signal(how)
            psutil.wait_procs([worker], timeout=2)
            worker = worker_of(process) if times < 2 else worker
        killed = time.monotonic()
        rest, err = process.communicate(timeout=5)
        assert time.monotonic() - killed < 2
    assert process.returncode == 1
    assert set((shown + rest).split(b" ")) <= {b"word", b"\n", b"word\n", b""}
    assert rest.endswith(b"\n")
    first, second, last = err.decode().splitlines()
    assert first.startswith(f"note: the engine was killed by {how.name} while generating")
    assert first.endswith("; the engine is started again, and the answer goes on")
    assert second.endswith("; the engine is started again with a context of 100096, and the answer goes on")
    assert last.startswith(f"error: the engine was killed by {how.name} while generating")


def test_a_worker_killed_at_its_start_costs_a_note(endless: str) -> None:
    with started(endless) as (process, worker):
        worker.kill()
        assert process.stdout.read(10) == b"word word "
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=5)
    assert process.returncode == 130
    assert "note: the engine was killed by SIGKILL while" in err.decode()


def test_a_worker_that_hangs_ends_with_the_time_limit(endless: str) -> None:
    with started(endless, "--timeout", "1") as (process, worker):
        worker.suspend()
        _, err = process.communicate(timeout=10)
    assert process.returncode == 1
    (line,) = err.decode().splitlines()
    assert "in the time allowed" in line


def test_the_worker_does_not_outlive_a_killed_command(endless: str) -> None:
    with started(endless) as (process, _worker):
        process.stdout.read(1)
        process.kill()
        process.communicate()


def test_ctrl_c_keeps_what_was_printed(endless: str) -> None:
    with started(endless) as (process, _worker):
        begin = process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=5)
    assert process.returncode == 130
    assert (begin + rest).startswith(b"word word")
    (summary,) = err.decode().splitlines()
    assert "(interrupted)" in summary


def test_ctrl_c_with_json_gives_the_object(endless: str) -> None:
    with started(endless, "--json") as (process, worker):
        busy = worker.cpu_times().user
        while worker.cpu_times().user < busy + 1:  # it is generating by then
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=5)
    answer = json.loads(out)
    assert (process.returncode, err, answer["finish_reason"]) == (130, b"", "cancelled")
    assert answer["text"].startswith("word word")
    assert answer["stats"]["tokens"] > 1


def test_a_reader_that_goes_away_is_no_error_message(endless: str) -> None:
    with started(endless) as (process, _worker):
        process.stdout.read(20)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_timeout_keeps_the_text_and_says_so(tokencli: Tokencli, endless: str) -> None:
    result = tokencli("run", endless, "hi", "--timeout", "3", "--json", "--context", "200000")
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["finish_reason"]) == (0, "timeout")
    assert answer["text"].startswith("word word")


def run_in_terminal(*arguments: str, environment: dict[str, str]) -> str:
    """Everything that `tokencli run` writes to a real pseudo-terminal."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", *arguments], stdin=side, stdout=side, stderr=side, env={**os.environ, **environment}
    )
    os.close(side)
    written = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    process.wait(20)
    os.close(main)
    return written.decode()


def test_model_text_cannot_send_escapes_to_a_terminal(tmp_path: Path) -> None:
    """Report A5-18."""
    pieces = [b"a\x1b]52;c;", b"aGk=\x07b", b"\x1b[31mred", b"\x9b2J".decode("latin-1").encode(), b" end"]
    model = str(tiny_models.scripted(tmp_path / "m.gguf", pieces))
    shown = run_in_terminal(model, "hi", environment={"TERM": "xterm"})
    assert "abred end" in shown
    assert "\x1b]52" not in shown
    assert "\x1b[31m" not in shown
    assert "\x9b" not in shown
    piped = subprocess.run([*COMMAND, "run", model, "hi"], capture_output=True, stdin=subprocess.DEVNULL, check=True).stdout
    assert b"\x1b]52;c;aGk=\x07" in piped, "a file gets what the model wrote"


@pytest.mark.parametrize(("environment", "coloured"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False)])
def test_a_dumb_terminal_gets_no_escapes_at_all(tmp_path: Path, environment: dict[str, str], coloured: bool) -> None:
    pieces = [b"<think>", b"hm", b"</think>", b"yes"]
    shown = run_in_terminal(str(tiny_models.scripted(tmp_path / "m.gguf", pieces)), "hi", environment=environment)
    assert ("\x1b" in shown) == coloured
    assert "hm" in shown
    assert "yes" in shown


def test_no_color_means_no_colours(tmp_path: Path) -> None:
    pieces = [b"<think>", b"hm", b"</think>", b"yes"]
    model = str(tiny_models.scripted(tmp_path / "m.gguf", pieces))
    shown = run_in_terminal(model, "hi", environment={"TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b[2m" not in shown


def test_reasoning_goes_to_stderr_and_into_json(tokencli: Tokencli, tmp_path: Path) -> None:
    model = str(tiny_models.scripted(tmp_path / "m.gguf", [b"<think>", b"\n", b"hm", b"\n", b"</think>", b"\n", b"yes"]))
    result = tokencli("run", model, "hi")
    assert result.stdout == "yes\n"
    assert result.stderr.startswith("hm\n\n")
    answer = json.loads(tokencli("run", model, "hi", "--json").stdout)
    assert (answer["text"], answer["reasoning"]) == ("yes", "hm")


def test_help_and_version(tokencli: Tokencli) -> None:
    assert "run" in tokencli("--help").stdout
    assert tokencli("--version").stdout.startswith("tokencli ")
    assert tokencli("run", "--help").returncode == 0

"""Public faults of other chats, on a real terminal and on pipes (field/reports.md); the conversation behind them is a fake."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from tokencli.cli.chat_lines import HOW_TO_LEAVE

PROGRAM = [sys.executable, "-m", "tests.field.chat_program", "tiny"]
ENTER, CTRL_C, CTRL_D = "\r", "\x03", "\x04"
SHELL = 'if read -r -t 1 line; then echo "the shell ran: $line"; else echo "the shell ran nothing"; fi'


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


LINES = "\r".join(f"rm -r /tmp/nothing-{number}" for number in range(400))
COUNTED = f"got 400 lines, {len(LINES)} characters"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    own = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    return {**os.environ, **own, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}


@pytest.fixture
def chat(environment: dict[str, str]) -> Iterator[Callable[..., pexpect.spawn]]:
    """Starts the chat on a terminal of its own, `after` it the shell goes on, and waits for its prompt."""
    started: list[pexpect.spawn] = []

    def start(*, after: str = "exit $?", **variables: str) -> pexpect.spawn:
        command = ["-c", f"{shlex.join(PROGRAM)}; {after}"]
        own = {**environment, **variables}
        terminal = pexpect.spawn("bash", command, env=own, encoding="utf-8", timeout=20, dimensions=(24, 80))
        started.append(terminal)
        terminal.expect_exact(">>>")
        return terminal

    yield start
    for each in started:
        each.close(force=True)


def ended(terminal: pexpect.spawn) -> int | None:
    terminal.expect(pexpect.EOF)
    terminal.close()
    return terminal.exitstatus


@pytest.mark.parametrize(
    ("typed", "code", "says"),
    [
        ("", 0, ""),
        ("\n\n", 0, ""),
        ("hi", 0, "got 1 lines, 2 characters 🙂\n"),
        ("hi\nyou\n", 0, "got 1 lines, 2 characters 🙂\ngot 1 lines, 3 characters 🙂\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a5_13_a5_15_a_pipe_is_answered_and_its_end_is_the_end(
    environment: dict[str, str], encoding: str, typed: str, code: int, says: str
) -> None:
    """EOF is no empty line; nothing but answers on stdout, in UTF-8 whatever the platform says."""
    own = {**environment, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(PROGRAM, input=typed.encode(), env=own, capture_output=True, timeout=10, check=False)
    assert (done.returncode, done.stdout.decode("utf-8")) == (code, says)
    assert b">>>" not in done.stderr


def test_a5_15_dev_null_ends_at_once(environment: dict[str, str]) -> None:
    done = subprocess.run(PROGRAM, stdin=subprocess.DEVNULL, env=environment, capture_output=True, timeout=10, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a5_16_ctrl_c_cuts_the_answer_says_how_to_leave_and_leaves(chat: Callable[..., pexpect.spawn], term: str) -> None:
    terminal = chat(TERM=term)
    terminal.send("slow" + ENTER)
    terminal.expect_exact("word2")
    terminal.send(CTRL_C)
    terminal.expect_exact("(interrupted)")
    terminal.expect_exact(">>>")
    terminal.send(CTRL_C)
    terminal.expect_exact(HOW_TO_LEAVE)
    terminal.send(CTRL_C)
    assert ended(terminal) == 130


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a5_16_ctrl_d_leaves_with_0_and_a_terminal_as_it_was(chat: Callable[..., pexpect.spawn], term: str) -> None:
    terminal = chat(TERM=term, after="code=$?; stty -a; exit $code")
    terminal.send(CTRL_D)
    terminal.expect(r"[ ;]icrnl .*[ ;]icanon .*[ ;]echo ")
    assert ended(terminal) == 0


def test_a5_17_a_paste_is_one_message_at_the_prompt_and_while_an_answer_comes(chat: Callable[..., pexpect.spawn]) -> None:
    terminal = chat()
    terminal.send(pasted(LINES) + ENTER)
    terminal.expect_exact(COUNTED)
    terminal.send("slow" + ENTER)
    terminal.expect_exact("word2")
    terminal.send(pasted(LINES))
    terminal.send(CTRL_D)  # in a line that is not empty: nothing
    terminal.expect_exact("word59")
    terminal.send(ENTER)
    terminal.expect_exact(COUNTED)
    terminal.send(CTRL_D)
    assert ended(terminal) == 0


def test_a5_17_what_is_typed_while_an_answer_comes_is_not_lost_and_not_shown_in_it(chat: Callable[..., pexpect.spawn]) -> None:
    terminal = chat()
    terminal.send("slow" + ENTER)
    terminal.expect_exact("word2")
    terminal.send("typed ahead" + ENTER)
    terminal.expect_exact("word59")
    assert "typed" not in terminal.before
    terminal.expect_exact("got 1 lines, 11 characters")
    terminal.send(CTRL_D)
    assert ended(terminal) == 0


def test_a5_17_the_rest_of_a_paste_does_not_run_in_the_shell_after_a_crash(chat: Callable[..., pexpect.spawn]) -> None:
    terminal = chat(after=SHELL)
    terminal.send("crash" + ENTER)
    terminal.expect_exact("got 1 lines, 5 characters")
    terminal.send(pasted(LINES[:2000]) + ENTER)
    terminal.expect_exact("nobody foresaw this")
    terminal.expect_exact("the shell ran nothing")


def test_history_survives_a_kill_and_is_searched_with_ctrl_r(chat: Callable[..., pexpect.spawn]) -> None:
    terminal = chat(after="exit 0")
    terminal.send("a needle in hay" + ENTER)
    terminal.expect_exact("got 1 lines, 15 characters")
    (program,) = psutil.Process(terminal.pid).children()
    program.kill()
    assert ended(terminal) == 0
    terminal = chat()
    terminal.send("\x12needle" + ENTER + ENTER)
    terminal.expect_exact("got 1 lines, 15 characters")
    terminal.send(CTRL_D)
    assert ended(terminal) == 0


def test_the_status_line_stands_under_the_prompt(chat: Callable[..., pexpect.spawn]) -> None:
    terminal = chat(PROMPT_TOOLKIT_NO_CPR="")
    terminal.send("\x1b[1;1R")  # where the cursor is: what the editor asked
    terminal.expect_exact("tiny | 812 of 4096 tokens | 12.3 tokens/s | 512 MiB")
    terminal.send(CTRL_D)
    assert ended(terminal) == 0


def test_a_resize_and_wide_characters_do_not_disturb_the_line(chat: Callable[..., pexpect.spawn]) -> None:
    terminal = chat()
    terminal.send("你好 " * 30)
    terminal.setwinsize(10, 40)
    terminal.send("🙂" + ENTER)
    terminal.expect_exact("got 1 lines, 91 characters")
    terminal.send(CTRL_D)
    assert ended(terminal) == 0

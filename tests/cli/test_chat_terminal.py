"""`tokencli chat` as a person has it: the real command with a real engine, on a terminal of its own."""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import psutil
import pyte
import pytest

from tests import tiny_models
from tests.cli.conftest import Tokencli
from tokencli.world.sessions import Sessions, StoredMessage

ENTER, CTRL_C, CTRL_D = "\r", "\x03", "\x04"
ROWS, COLUMNS = 30, 90


class Window:
    """A terminal with `tokencli chat` in it: what is typed goes in, the screen comes out."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        command = ["-m", "tokencli", "chat", *arguments]
        self.process = pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8", dimensions=(ROWS, COLUMNS))
        self._screen = pyte.HistoryScreen(COLUMNS, ROWS, history=5000, ratio=1)
        self._stream = pyte.Stream(self._screen)
        self.wait_for(">>>")

    def type(self, text: str) -> None:
        self.process.send(text)

    def resize(self, rows: int, columns: int) -> None:
        self.process.setwinsize(rows, columns)
        self._screen.resize(rows, columns)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """All that is on the screen and above it, once the text is."""
        return self.wait_until(lambda shown: text in shown, seconds)

    def wait_until(self, holds: Callable[[str], bool], seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while not holds(self.shown):
            assert time.monotonic() < deadline, f"not in {seconds} s:\n{self.shown}"
            self.read()
        return self.shown

    def read(self) -> None:
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            self._stream.feed(self.process.read_nonblocking(65536, timeout=0.1))

    def exit_code(self) -> int | None:
        self.process.expect(pexpect.EOF, timeout=30)
        self.process.close()
        return self.process.exitstatus

    @property
    def shown(self) -> str:
        above = ["".join(line[at].data for at in range(COLUMNS)) for line in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self._screen.display])

    @property
    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    own = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**os.environ, **own, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}


@pytest.fixture
def window(environment: dict[str, str]) -> Iterator[Callable[..., Window]]:
    windows: list[Window] = []

    def start(*arguments: str) -> Window:
        windows.append(Window(environment, *arguments))
        return windows[-1]

    yield start
    for each in windows:
        each.process.close(force=True)


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """A model that counts for as long as it is let."""
    pieces = [f"word{number} ".encode() for number in range(100)]
    return str(tiny_models.scripted(tmp_path / "endless.gguf", pieces, end=False, context=65536))


@pytest.fixture
def brief(tmp_path: Path) -> str:
    return str(tiny_models.scripted(tmp_path / "brief.gguf", [b"**All**", b" well", "，谢谢 🙂".encode()]))


def saved(environment: dict[str, str]) -> list[StoredMessage]:
    with Sessions.open(Path(environment["XDG_DATA_HOME"]) / "tokencli" / "sessions.db") as sessions:
        session = sessions.latest()
        assert session
        return session.messages()


def test_a_conversation_with_commands_a_long_paste_and_a_resize(window: Callable[..., Window], brief: str) -> None:
    chat = window(brief, "--system", "Be brief.")
    chat.type("How are you?" + ENTER)
    assert "\nAll well，谢谢 🙂\n" in chat.wait_for("tokens/s |"), "Markdown is laid out"
    chat.type("\x1b[200~" + "\r".join(f"line {number}" for number in range(400)) + "\x1b[201~" + ENTER)
    chat.wait_until(lambda shown: shown.count("tokens/s |") >= 2)
    chat.resize(24, 60)
    chat.type("/stats" + ENTER)
    assert "4 messages" in chat.wait_for("reuse"), "the paste was one message"
    chat.type("/undo" + ENTER + "/regen" + ENTER)
    chat.wait_until(lambda shown: "All well" in shown.rpartition("/regen")[2])
    chat.type("/nonsense" + ENTER)
    chat.wait_for("there is no command /nonsense")
    chat.type(CTRL_D)
    assert chat.exit_code() == 0


def test_ctrl_c_cuts_the_answer_and_the_conversation_goes_on(
    window: Callable[..., Window], endless: str, environment: dict[str, str]
) -> None:
    chat = window(endless, "--context", "65536")
    chat.type("Count" + ENTER)
    chat.wait_for("word50")
    chat.type(CTRL_C)
    chat.wait_for("(interrupted)")
    cut = saved_while_open(environment)
    assert cut[-1].cut
    assert cut[-1].content.startswith("word0 word1 ")
    chat.type("/set max-tokens 3" + ENTER + "Go on" + ENTER)
    chat.wait_for("3 tokens (cut at the limit)")
    chat.type(CTRL_C)
    chat.wait_for("Ctrl-C")
    chat.type(CTRL_C)
    assert chat.exit_code() == 130


def saved_while_open(environment: dict[str, str]) -> list[StoredMessage]:
    """The messages of the only session, read beside the chat that has it open."""
    file = Path(environment["XDG_DATA_HOME"]) / "tokencli" / "sessions.db"
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT role, content, reasoning, cut FROM messages WHERE NOT removed ORDER BY id").fetchall()
    database.close()
    return [StoredMessage(role, content, reasoning, bool(cut)) for role, content, reasoning, cut in rows]


def test_a_killed_worker_in_mid_answer_goes_on(window: Callable[..., Window], endless: str, environment: dict[str, str]) -> None:
    chat = window(endless, "--max-tokens", "4000", "--context", "8192")
    chat.type("Count" + ENTER)
    chat.wait_for("word50")
    chat.worker.send_signal(signal.SIGKILL)
    shown = chat.wait_for("tokens (cut at the limit)")
    assert "note: the engine was killed by SIGKILL while generating" in shown.replace("\n", " ")
    chat.type(CTRL_D)
    assert chat.exit_code() == 0
    _, answer = saved(environment)
    before, after = answer.content.split()[:51], answer.content.split()[51:]
    assert before == [f"word{number}" for number in range(51)]
    assert len(after) > 100, "the answer went on, up to the limit"


def test_a_killed_chat_reopens_complete(window: Callable[..., Window], endless: str, environment: dict[str, str]) -> None:
    chat = window(endless, "--context", "65536", "--plain")
    chat.type("Count" + ENTER)
    chat.wait_until(lambda shown: shown.count("word99") >= 3)
    worker = chat.worker
    os.kill(chat.process.pid, signal.SIGKILL)
    while chat.process.isalive():
        chat.read()
    for _ in range(3):
        chat.read()
    printed = chat.shown[chat.shown.index("word0 ") :].split()
    worker.wait(10)
    question, answer = saved(environment)
    assert question.content == "Count"
    assert answer.cut
    words = answer.content.split()
    assert "".join(words).startswith("".join(printed)), "everything printed is there"
    again = window("--continue")
    assert "2 messages so far" in again.shown
    again.type("/set max-tokens 2" + ENTER + "More" + ENTER)
    again.wait_for("2 tokens (cut at the limit)")


def test_run_and_chat_share_a_session(tokencli: Tokencli, environment: dict[str, str], brief: str) -> None:
    first = tokencli("run", brief, "How are you?", "--session", "health", "--json", env=environment)
    assert json.loads(first.stdout)["text"] == "**All** well，谢谢 🙂"
    second = json.loads(tokencli("run", brief, "Still?", "--session", "health", "--json", env=environment).stdout)
    assert second["stats"]["cached_tokens"] > 20, "its cache was on disk"
    third = tokencli("chat", "--session", "health", env=environment, input="And now?\n/stats\n")
    assert third.returncode == 0
    assert third.stdout == "**All** well，谢谢 🙂\n"
    assert "session  health, 6 messages" in third.stderr
    listed = tokencli("chat", "--list", env=environment)
    assert "health" in listed.stdout
    assert tokencli("chat", "--delete", "health", env=environment).returncode == 0
    assert "no saved conversation" in tokencli("chat", "--list", env=environment).stdout


def test_chat_without_anything_to_open_says_what_to_type(tokencli: Tokencli, environment: dict[str, str]) -> None:
    unopened = {"--plain": "no model and no conversation was named", "--continue": "no saved conversation to continue"}
    for option, says in unopened.items():
        result = tokencli("chat", option, env=environment)
        assert result.returncode == 2
        assert says in result.stderr
        assert "tokencli chat smollm2-135m" in result.stderr

"""Public faults of other runners that pure code can show, one test for each report (field/reports.md)."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.gguf_bytes import gguf
from tokencli.decode.reply import Reply
from tokencli.decode.text import EscapeStripper, StopFilter, Utf8Stream
from tokencli.errors import BadModelFile
from tokencli.world.gguf_file import parse_header, read_header


def test_a5_02_emoji_and_chinese_come_whole_when_their_bytes_come_singly() -> None:
    """Byte tokens carry parts of a code point: collect them, and never show U+FFFD for a character that is whole."""
    text = "你好🙂👩‍💻"
    stream = Utf8Stream()
    assert "".join(stream.feed(bytes([byte])) for byte in text.encode()) == text


@pytest.mark.parametrize("at", range(1, len("beta gamma")))
def test_a5_07_a_stop_string_over_two_tokens_is_seen_and_its_first_half_not_shown(at: int) -> None:
    """Hold back the longest tail that is a prefix of any stop string; release it on a mismatch."""
    stop = StopFilter(["beta gamma"])
    shown = stop.feed("alpha " + "beta gamma"[:at]) + stop.feed("beta gamma"[at:] + " delta") + stop.flush()
    assert (shown, stop.stopped) == ("alpha ", True)
    stop = StopFilter(["beta gamma"])
    assert stop.feed("alpha " + "beta gamma"[:at]) + stop.feed("!") == "alpha " + "beta gamma"[:at] + "!"


class Words:
    """A vocabulary of words; "<end>" ends a generation."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def piece(self, token: int) -> bytes:
        return self._words[token].encode()

    def is_end(self, token: int) -> bool:
        return self._words[token] == "<end>"


@pytest.mark.parametrize("tail", ["as", "?"])
def test_a5_08_text_held_back_for_a_stop_string_is_not_lost_when_the_answer_ends(tail: str) -> None:
    """Flush what is held back at an end token and at the length limit, not after a stop string."""
    ended = Reply(Words("ready ", tail, "<end>"), stop=["assistant:", "?\n"])
    assert ended.add([0, 1, 2]) + ended.end("length") == [("answer", "ready "), ("answer", tail)]
    cut = Reply(Words("ready ", tail), stop=["assistant:", "?\n"], max_tokens=2)
    assert cut.add([0, 1]) + cut.end("length") == [("answer", "ready "), ("answer", tail)]
    stopped = Reply(Words("ready ", "assistant:", tail), stop=["assistant:", "?\n"])
    assert stopped.add([0, 1, 2]) + stopped.end("length") == [("answer", "ready ")]


PRINTS = """
from tokencli.cli.terminal import Terminal
terminal = Terminal.of_process()
for stream in (terminal.stdout, terminal.stderr):
    stream.write("é 你好 🙂 \\ud83d")
"""


def printed(folder: Path, encoding: str, stdout: int = subprocess.PIPE) -> tuple[bytes | None, bytes]:
    """(stdout, stderr) of a program that prints with our streams where the platform says `encoding`."""
    environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PRINTS]
    done = subprocess.run(command, env=environment, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_a5_13_output_that_the_console_cannot_show_does_not_end_the_program(encoding: str, tmp_path: Path) -> None:
    """Make the streams unable to fail before anything is printed; a pipe or file gets UTF-8, so that nothing is lost."""
    text = "é 你好 🙂 ?".encode()
    assert printed(tmp_path, encoding) == (text, text)


def test_a5_13_a_terminal_keeps_its_encoding_and_shows_what_it_can(tmp_path: Path) -> None:
    """The same on a console of another code page: a question mark for what it has no character for."""
    ours, its = os.openpty()
    printed(tmp_path, "cp1252", stdout=its)
    assert os.read(ours, 100) == "é ?? ? ?".encode("cp1252")
    os.close(ours)
    os.close(its)


CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"


@pytest.mark.parametrize("at", range(len(CLIPBOARD) + 1))
def test_a5_18_an_escape_sequence_in_model_text_never_reaches_the_terminal(at: int) -> None:
    """Strip terminal commands from model text, also when a sequence is split over pieces; keep line feed and tab."""
    stripper = EscapeStripper()
    shown = stripper.feed("a\t" + CLIPBOARD[:at]) + stripper.feed(CLIPBOARD[at:] + "b\n\x1b[2J") + stripper.flush()
    assert shown == "a\tb\n"


def test_a4_18_nothing_after_an_end_token_in_an_accepted_run_is_shown() -> None:
    """Check end tokens and stop strings token by token over the accepted run, and cut there."""
    reply = Reply(Words("Hello", " world", "<end>", "user", " again"))
    assert reply.add([0, 1, 2, 3, 4]) + reply.end("length") == [("answer", "Hello world")]
    assert (reply.finish, reply.tokens) == ("stop", 3)


Q2_0 = 42  # mainline: 64 elements in 18 bytes; the fork of the same id: 128 in 34


def test_a3_07_a_type_id_with_two_layouts_is_refused_by_the_sizes() -> None:
    """Compare the tensors' sizes with the file, by the known block layout: the 128-element one must not be loaded."""
    tensors = [(name, (128, 64), Q2_0) for name in ("token_embd.weight", "output.weight")]
    mainline, fork = gguf(tensors=tensors), gguf(tensors=tensors, offsets=(0, 64 * 34))
    assert parse_header(mainline, len(mainline), "g64.gguf").tensors[1].offset == 64 * 36
    with pytest.raises(BadModelFile, match="not at 2304 as its types ask") as caught:
        parse_header(fork, len(fork), "g128.gguf")
    assert "another layout of the type" in caught.value.hint


def test_a3_07_a_single_tensor_of_the_other_layout_is_too_short() -> None:
    """The same, where no second tensor betrays the layout: the data section ends before the declared type does."""
    whole = gguf(tensors=[("token_embd.weight", (128, 64), Q2_0)])
    with pytest.raises(BadModelFile, match="cut short"):
        parse_header(whole, len(whole) - 64 * (36 - 34), "g128.gguf")


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        (b"<!DOCTYPE html>\n<html class=''><head><title>model.gguf - Hugging Face</title>", "web page"),
        (b"tjgg" + struct.pack("<I", 3) + bytes(100), "old GGML"),
    ],
    ids=["the page of a /blob/ link", "an old ggml file"],
)
def test_a6_09_a_web_page_or_an_old_file_saved_as_gguf_is_called_what_it_is(saved: bytes, what: str, tmp_path: Path) -> None:
    """Check the magic, say that it is an HTML page, and point to /resolve/."""
    path = tmp_path / "model.gguf"
    path.write_bytes(saved)
    with pytest.raises(BadModelFile, match=what) as caught:
        read_header(path)
    assert "/resolve/" in caught.value.hint or "GGUF" in caught.value.hint

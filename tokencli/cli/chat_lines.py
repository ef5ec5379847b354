'''What makes a message out of lines: one line, or a """ block. Reads them from a stream; the line editor is in chat_input.'''

import contextlib
from typing import Protocol

from tokencli.cli.terminal import Terminal
from tokencli.errors import Interrupted

PROMPT, CONTINUATION = ">>> ", "... "
HOW_TO_LEAVE = "Ctrl-C again or Ctrl-D leaves; /help tells what can be typed"
BLOCK = '"""'


class Source(Protocol):
    """Where the messages come from. Used as a context manager around the whole conversation."""

    @property
    def interactive(self) -> bool:
        """Whether a person types: then an interrupt cuts an answer and no more, and an error does not count at the end."""

    def read(self, begun: str = "", status: str = "") -> str | None:
        """The next message as it was typed, None at the end of input. Raises Interrupted for two Ctrl-C in a row.

        `begun`: text to begin with, and `status`: the status line, both for an editor.
        """

    def __enter__(self) -> "Source": ...

    def __exit__(self, *_exception: object) -> None: ...


def is_open(text: str) -> bool:
    """Whether a block was begun and not closed: more lines belong to the message."""
    begun = text.lstrip()
    return begun.startswith(BLOCK) and BLOCK not in begun[len(BLOCK) :]


def block(text: str) -> str | None:
    """What stands in a block, None where the text is none. One that the input's end left open is closed by it."""
    inside = text.strip()
    if not inside.startswith(BLOCK):
        return None
    inside = inside[len(BLOCK) :]
    if BLOCK in inside[: -len(BLOCK)]:
        return None  # closed before its end: a text that happens to begin like a block
    return inside.removesuffix(BLOCK).strip("\n")


def without_surrogates(text: str) -> str:
    """Text that can be saved and sent: bytes that were no UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class LineSource:
    """Messages from a pipe, a file or a terminal that cannot do more. Prints a prompt only for a person, on stderr."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.interactive = terminal.stdin is not None and terminal.stdin.isatty()

    def __enter__(self) -> "LineSource":
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def read(self, begun: str = "", status: str = "") -> str | None:
        with contextlib.suppress(KeyboardInterrupt):
            return self._message()
        if self.interactive:
            self._show(f"\n{HOW_TO_LEAVE}\n")
            with contextlib.suppress(KeyboardInterrupt):
                return self._message()
        raise Interrupted("interrupted")

    def _message(self) -> str | None:
        if self._terminal.stdin is None:  # started without any
            return None
        line = self._line(PROMPT)
        text = line
        while line and is_open(text):
            line = self._line(CONTINUATION)
            text += line
        return without_surrogates(text.rstrip("\r\n")) if text else None

    def _line(self, prompt: str) -> str:
        self._show(prompt)
        return self._terminal.stdin.readline()

    def _show(self, text: str) -> None:
        if self.interactive:
            self._terminal.stderr.write(text)
            self._terminal.stderr.flush()

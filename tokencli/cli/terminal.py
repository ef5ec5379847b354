"""The streams and settings that a command prints with; tests hand in their own. Knows no event and no command."""

import io
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from tokencli.errors import UsageError

LAYOUT = "─•▌"  # what a layout needs besides letters


@dataclass(frozen=True, slots=True)
class Terminal:
    """stdin, stdout, stderr and the environment variables that say how to print on them."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]

    @classmethod
    def of_process(cls) -> "Terminal":
        """The process's own streams, made unable to fail on any character (reports A5-13, A5-19).

        A terminal keeps its encoding, what it cannot show becomes "?"; a file or pipe gets UTF-8, so that nothing is lost.
        """
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
        if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        return cls(sys.stdin, sys.stdout, sys.stderr, os.environ)

    @property
    def shows_answer(self) -> bool:
        """Whether the answer goes to a person's terminal."""
        return self.stdout.isatty()

    @property
    def edits_lines(self) -> bool:
        """Whether a line editor can work: a whole terminal on both sides."""
        reads = self.stdin is not None and self.stdin.isatty()  # None: started without any stdin
        return reads and self.stdout.isatty() and self.environ.get("TERM") != "dumb"

    @property
    def shows_progress(self) -> bool:
        return self.stderr.isatty() and self.environ.get("TERM") != "dumb"

    @property
    def shows_colour(self) -> bool:
        return self.shows_progress and not self.environ.get("NO_COLOR")

    @property
    def colours_answer(self) -> bool:
        return self.shows_answer and self.environ.get("TERM") != "dumb" and not self.environ.get("NO_COLOR")

    @property
    def draws_answer(self) -> bool:
        """Whether an answer can be laid out on stdout and drawn in place."""
        return self.shows_answer and self.environ.get("TERM") != "dumb" and _can_show(self.stdout, LAYOUT)

    def confirm(self, question: str, yes: bool = False) -> bool:
        """Whether the user agrees, `yes` being what was said beforehand. Raises UsageError where nobody can be asked."""
        if yes:
            return True
        if not (self.stdin.isatty() and self.stderr.isatty()):
            raise UsageError(question, "nobody can be asked here: add --yes to go on")
        self.stderr.write(f"{question}. Go on? [Y/n] ")
        self.stderr.flush()
        return self.stdin.readline().strip().lower() in ("", "y", "yes")

    def piped_text(self) -> str | None:
        """All of stdin where it is a pipe or a file, else None: a terminal or /dev/null is nobody's prompt."""
        try:
            mode = os.fstat(self.stdin.fileno()).st_mode
        except (AttributeError, OSError, ValueError):  # AttributeError: started without any stdin
            return None
        return self.stdin.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) else None


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True

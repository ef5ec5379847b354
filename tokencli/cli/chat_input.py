"""The line editor of a chat on a terminal: keys, history, completion, the status line. Knows no command and no engine."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, Output

from tokencli.cli.chat_lines import CONTINUATION, HOW_TO_LEAVE, PROMPT, is_open, without_surrogates
from tokencli.cli.chat_words import ChatWords
from tokencli.cli.terminal import Terminal
from tokencli.errors import Interrupted

_PASTES_MARKED = "\x1b[?2004h"
_PASTES_UNMARKED = "\x1b[?2004l"
_MENU_LINES = 4


class PromptSource:
    """Messages from a person at a terminal. `input` and `output` are given by tests only."""

    interactive = True

    def __init__(
        self,
        terminal: Terminal,
        history: History,
        words: ChatWords,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._terminal = terminal
        self._keys_kept = _keys_kept(terminal)
        self._asked_to_leave = False
        self._status = ""
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=history,
            completer=_WordCompleter(words),
            complete_while_typing=True,
            reserve_space_for_menu=_MENU_LINES,
            placeholder=lambda: [("fg:ansibrightblack", HOW_TO_LEAVE if self._asked_to_leave else "")],
            bottom_toolbar=lambda: self._status,
            key_bindings=self._bindings(),
            tempfile_suffix=".md",
            color_depth=None if terminal.colours_answer else ColorDepth.DEPTH_1_BIT,
            enable_suspend=True,
            input=input,
            output=output,
        )
        self._session.default_buffer.on_text_changed += self._stay

    def __enter__(self) -> "PromptSource":
        self._keys_kept.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._keys_kept.__exit__(*exception)

    def read(self, begun: str = "", status: str = "") -> str | None:
        self._status, self._asked_to_leave = status, False
        try:
            typed = self._session.prompt(default=begun)
        except EOFError:
            return None
        finally:
            _write(self._terminal, _PASTES_MARKED)  # the editor took the marks away
        return without_surrogates(typed)

    def _stay(self, _: object) -> None:
        self._asked_to_leave = False

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        in_message = has_focus(DEFAULT_BUFFER)

        @bindings.add("enter", filter=in_message)
        def _send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if is_open(buffer.text):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @bindings.add("escape", "enter", filter=in_message)
        @bindings.add("c-j", filter=in_message)
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @bindings.add("c-g", filter=in_message)
        def _open_editor(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()

        @bindings.add("c-c", filter=in_message)
        @bindings.add("<sigint>")
        def _interrupt(event: KeyPressEvent) -> None:
            if self._asked_to_leave:
                event.app.exit(exception=Interrupted("interrupted"), style="class:aborting")
                return
            self._session.default_buffer.reset()
            self._asked_to_leave = True

        return bindings


class _WordCompleter(Completer):
    """The words of a chat and the names of files, as the editor asks for them."""

    def __init__(self, words: ChatWords) -> None:
        self._words = words
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        begun, words = self._words.after(document.text_before_cursor)
        if words is None:
            yield from self._files.get_completions(Document(begun), complete_event)
        else:
            yield from (Completion(word, start_position=-len(begun)) for word in words)


class _SavedHistory(FileHistory):
    """A history whose file may become unwritable: then it goes on in memory."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(without_surrogates(string))


def history_in(folder: Path) -> History:
    """What was typed in all chats, readable by its owner alone; in memory where the folder cannot be written."""
    file = folder / "chat-history"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return _SavedHistory(str(file))


@contextlib.contextmanager
def _keys_kept(terminal: Terminal) -> Iterator[None]:
    """What is typed while an answer streams is not echoed into it, and waits for the next prompt as it was typed or pasted.

    At the end it is thrown away: the rest of a paste must not run in the shell (report A5-17).
    """
    if not terminal.edits_lines or os.name != "posix":
        yield
        return
    import termios

    before = termios.tcgetattr(terminal.stdin)
    quiet = termios.tcgetattr(terminal.stdin)
    quiet[0] &= ~termios.ICRNL  # Enter stays Enter: a line feed is Ctrl-J
    quiet[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)  # ISIG stays: Ctrl-C cuts the answer
    termios.tcsetattr(terminal.stdin, termios.TCSADRAIN, quiet)
    _write(terminal, _PASTES_MARKED)
    try:
        yield
    finally:
        _write(terminal, _PASTES_UNMARKED)
        termios.tcsetattr(terminal.stdin, termios.TCSAFLUSH, before)


def _write(terminal: Terminal, sequence: str) -> None:
    terminal.stdout.write(sequence)
    terminal.stdout.flush()

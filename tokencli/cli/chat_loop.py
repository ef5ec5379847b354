"""The loop of a conversation: a line comes in, a command or an answer goes out, until someone leaves. Decides nothing."""

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from tokencli.cli.answer import AnswerView, answer_view
from tokencli.cli.chat_commands import perform
from tokencli.cli.chat_lines import Source, block
from tokencli.cli.chat_view import EventView, greeting, shortened, status_line
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Aside, summary
from tokencli.core import Done, Event
from tokencli.errors import Interrupted, TokencliError

if TYPE_CHECKING:
    from tokencli.app.chat import Chat


class ChatLoop:
    """One conversation from the first line to the last. What a command may do is its `Talk`."""

    def __init__(
        self, chat: "Chat", source: Source, terminal: Terminal, *, plain: bool = False, quiet: bool = False, thoughts: bool = True
    ) -> None:
        self.chat = chat
        self._source = source
        self._terminal = terminal
        self._plain = plain
        self._thoughts = thoughts
        self._aside = Aside(terminal, quiet=quiet)
        self._begun = ""
        self._code = 0
        self._left = False

    def run(self) -> int:
        """The exit code. Raises what makes it impossible to begin."""
        self._show(self.chat.open())
        if self.interactive:
            self._aside.line(greeting(self.chat.model, self.chat.stats()))
        self.recall()
        while not self._left:
            try:
                typed = self._read()
            except KeyboardInterrupt:  # meant for an answer that had just ended
                continue
            except Interrupted as twice:
                return twice.exit_code
            if typed is None:
                break
            if typed.strip():
                self._take(typed)
        return 0 if self.interactive else self._code

    # what a command may do

    @property
    def interactive(self) -> bool:
        return self._source.interactive

    def answer(self, events: Iterator[Event]) -> None:
        done = self._show(events)
        plan = self.chat.stats().plan
        if done and plan:
            self._aside.line(summary(plan, done), dim=True)
        if done and done.finish_reason == "cancelled" and not self.interactive:
            raise Interrupted("interrupted")

    def note(self, text: str) -> None:
        self._aside.line(text)

    def table(self, lines: Iterable[str]) -> None:
        self._aside.table(lines)

    def recall(self) -> None:
        messages = self.chat.messages
        if not messages:
            return
        if not self._terminal.shows_answer:
            self._aside.line(f"{len(messages)} messages so far")
            return
        self._aside.line(f"{len(messages)} messages so far; the last of them:")
        last = max((at for at, each in enumerate(messages) if each.role == "user"), default=0)
        for message in messages[last:]:
            if message.role == "user":
                self._aside.line(f">>> {shortened(message.content)}")
            else:
                view = self._answer_view()
                view.feed("answer", message.content)
                view.finish()

    def show_thoughts(self, shown: bool) -> None:
        self._thoughts = shown

    def begin_line(self, text: str) -> None:
        self._begun = text

    def leave(self) -> None:
        self._left = True

    # inside

    def _read(self) -> str | None:
        begun, self._begun = self._begun, ""
        status = status_line(self.chat.model, self.chat.stats()) if self.interactive else ""
        return self._source.read(begun, status)

    def _take(self, typed: str) -> None:
        """One message or command. Whatever it raises is told, and the conversation goes on."""
        try:
            self._do(typed)
            if not self._left:
                self._code = 0
        except (Interrupted, KeyboardInterrupt):
            self._aside.line("interrupted")
            self._left, self._code = not self.interactive, Interrupted.exit_code
        except TokencliError as error:
            self._aside.error(error)
            self._code = error.exit_code

    def _do(self, typed: str) -> None:
        inside = block(typed)
        if inside is not None:
            self.answer(self.chat.say(inside))
        elif typed.startswith("//"):
            self.answer(self.chat.say(typed[1:]))
        elif typed.startswith("/"):
            perform(typed, self)
        else:
            self.answer(self.chat.say(typed))

    def _show(self, events: Iterator[Event]) -> Done | None:
        view = EventView(self._aside, self._answer_view())
        try:
            for event in events:
                view.show(event)
        except BaseException:
            view.abandon()
            raise
        finally:
            if isinstance(events, Generator):  # what was cut by an interrupt stays as it was shown
                events.close()
        view.finish()
        return view.done

    def _answer_view(self) -> AnswerView:
        return answer_view(self._terminal, plain=self._plain, thinking="show" if self._thoughts else "hide")

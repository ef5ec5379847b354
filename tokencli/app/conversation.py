"""A conversation as it grows: every message is on disk before it is shown. Knows sessions, no engine.

Where the disk takes no more, it goes on in memory, and that is said once.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Literal, TypeVar

from tokencli.core import Begun, Message, TextKind
from tokencli.errors import NotSaved
from tokencli.world.sessions import StoredMessage
from tokencli.world.sessions.session import Session

_T = TypeVar("_T")


class Conversation:
    """The messages after the system message, each as it was shown. `told` gets what the user should know of the disk."""

    def __init__(self, session: Session | None, told: Callable[[str], None]) -> None:
        self._session, self._told = session, told
        self._messages = session.messages() if session else []
        self._system = session.system if session else None
        self._answer: int | None = None
        self._answering = False
        self.unsaved = False

    @property
    def session(self) -> Session | None:
        """None where nothing is saved, or nothing yet."""
        return self._session

    def begin(self, session: Session | None) -> None:
        """Save in this new session from now on; None: nowhere."""
        self._session, self.unsaved = session, session is None
        if self._system:
            self._keep(lambda session: session.set_system(self._system))

    def close(self) -> None:
        """Let others have the session."""
        if self._session:
            self._session.close()

    @property
    def messages(self) -> tuple[StoredMessage, ...]:
        return tuple(self._messages)

    @property
    def system(self) -> str | None:
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = text
        self._keep(lambda session: session.set_system(text))

    @property
    def last_question(self) -> int | None:
        """Where the last user message stands."""
        return next((at for at in reversed(range(len(self._messages))) if self._messages[at].role == "user"), None)

    def ask(self, text: str) -> None:
        self._messages.append(StoredMessage("user", text))
        self._keep(lambda session: session.add("user", text))

    def extend(self, kind: TextKind, text: str) -> None:
        """More of the answer; the first piece begins it."""
        if not self._answering:
            self._answering = True
            self._messages.append(StoredMessage("assistant", "", cut=True))
            self._answer = self._keep(lambda session: session.add("assistant"))
        message, field = self._messages[-1], "content" if kind == "answer" else "reasoning"
        self._messages[-1] = dataclasses.replace(message, **{field: getattr(message, field) + text})
        answer = self._answer
        if answer is not None:
            self._keep(lambda session: session.extend(answer, kind, text))

    def finish(self, cut: bool) -> None:
        """The answer is as long as it gets; nothing where none began."""
        if not self._answering:
            return
        self._messages[-1] = dataclasses.replace(self._messages[-1], cut=cut)
        answer, self._answer, self._answering = self._answer, None, False
        if answer is not None:
            self._keep(lambda session: session.finish(answer, cut))

    def cut_to(self, count: int) -> None:
        """Keep the first `count` messages."""
        del self._messages[count:]
        self._keep(lambda session: session.drop_after(count))

    def keep_model(self, name: str) -> None:
        self._keep(lambda session: session.set_model(name))

    def remember(self, name: str, value: str) -> None:
        self._keep(lambda session: session.set(name, value))

    def remembered(self, name: str) -> str | None:
        return self._session.settings().get(name) if self._session else None

    @property
    def begun(self) -> Begun:
        """The answer that is being written, so far."""
        return Begun(self._messages[-1].reasoning, self._messages[-1].content) if self._answering else Begun()

    def for_model(self, skipped: int = 0, summary: str | None = None, upto: int | None = None) -> tuple[Message, ...]:
        """What a model is given: the system message with the summary of what is skipped, and the messages up to one, without
        their reasoning and without the answer that is being written.
        """
        told = [self._system, f"Summary of the conversation so far:\n{summary}" if summary else None]
        system = "\n\n".join(part for part in told if part)
        end = len(self._messages) - self._answering if upto is None else upto
        rest = (Message(each.role, each.content) for each in self._messages[skipped:end] if each.content)
        return (*((Message("system", system),) if system else ()), *rest)

    def exported(self, kind: Literal["md", "json"], model: str) -> str:
        if kind == "json":
            messages = [dataclasses.asdict(each) for each in self._messages]
            return json.dumps({"model": model, "system": self._system, "messages": messages}, ensure_ascii=False, indent=2) + "\n"
        parts = [f"# Conversation with {model}", *([f"## System\n\n{self._system}"] if self._system else [])]
        return "\n\n".join([*parts, *(_as_markdown(each) for each in self._messages)]) + "\n"

    def _keep(self, action: Callable[[Session], _T]) -> _T | None:
        """Do it to the session; where it cannot be written, go on without and say so."""
        if self._session is None:
            return None
        try:
            return action(self._session)
        except NotSaved as failure:
            self._session, self.unsaved = None, True
            self._told(f"{failure.what}: the conversation goes on unsaved; {failure.hint}")
            return None


def _as_markdown(message: StoredMessage) -> str:
    title = {"user": "## You", "assistant": "## Answer", "system": "## System"}[message.role]
    thoughts = "".join(f"> {line}\n" for line in message.reasoning.splitlines())
    cut = " (cut)" if message.cut else ""
    return "\n\n".join(part for part in (title + cut, thoughts.rstrip("\n"), message.content) if part)

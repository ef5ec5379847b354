"""One conversation that is open here and nowhere else. Knows its messages and how they become rows; not the other sessions."""

import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

from tokencli.core import TextKind
from tokencli.errors import NotSaved, UsageError
from tokencli.world.sessions.file import Database

Role = Literal["system", "user", "assistant"]
_MAX_NAME = 80


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a conversation as a person saw it. `cut`: the answer was interrupted, or its process killed."""

    role: Role
    content: str
    reasoning: str = ""
    cut: bool = False


class Session:
    """An open conversation; `id` is unlike that of any other, ever. Close it to let others have it.

    Once a change could not be written (NotSaved), no later one is tried: the file keeps a whole beginning, without holes.
    """

    def __init__(self, database: Database, now: Callable[[], float], id: str, lock: int) -> None:
        """`lock`: the descriptor that keeps other processes out. Raises LookupError where the session has been deleted."""
        self.id = id
        self._database, self._now, self._lock = database, now, lock
        self._failure: NotSaved | None = None
        row = next(iter(database.rows("SELECT name, model, system FROM sessions WHERE id = ?", id)), None)
        if row is None:
            raise LookupError(id)
        self._name, self._model, self._system = cast(tuple[str, str, str | None], row)

    @property
    def name(self) -> str:
        return self._name

    @property
    def model(self) -> str:
        return self._model

    @property
    def system(self) -> str | None:
        return self._system

    @property
    def is_open(self) -> bool:
        return self._lock >= 0

    def close(self) -> None:
        if self.is_open:
            os.close(self._lock)
            self._lock = -1

    def messages(self) -> list[StoredMessage]:
        """What is in the conversation now: without what was dropped."""
        pieces = pieces_by_message(self._database)
        select = "SELECT id, role, content, reasoning, cut FROM messages WHERE session = ? AND NOT removed ORDER BY id"
        rows = cast(list[tuple[int, Role, str, str, int]], self._database.rows(select, self.id))
        return [
            StoredMessage(
                role, content + pieces.get((id, "answer"), ""), reasoning + pieces.get((id, "reasoning"), ""), bool(cut)
            )
            for id, role, content, reasoning, cut in rows
        ]

    def add(self, role: Role, content: str = "") -> int:
        """A new message at the end; its id. An assistant's counts as cut until it is finished."""
        insert = "INSERT INTO messages (session, role, content, cut) VALUES (?, ?, ?, ?)"
        with self._changing():
            id = self._database.write(insert, self.id, role, encodable(content), role == "assistant")
            self._touch()
        return id

    def extend(self, id: int, kind: TextKind, text: str) -> None:
        """More of an answer, as it streams: on return no kill of this process loses it. Costs some ten microseconds."""
        self._check()
        try:
            self._database.write("INSERT INTO pieces (message, kind, text) VALUES (?, ?, ?)", id, kind, encodable(text))
        except NotSaved as failure:
            self._failure = failure
            raise

    def finish(self, id: int, cut: bool) -> None:
        """The answer is as long as it gets; its pieces become one."""
        update = "UPDATE messages SET content = content || ?, reasoning = reasoning || ?, cut = ? WHERE id = ?"
        with self._changing():
            pieces = pieces_by_message(self._database)
            answer, reasoning = pieces.get((id, "answer"), ""), pieces.get((id, "reasoning"), "")
            self._database.write(update, answer, reasoning, cut, id)
            self._database.write("DELETE FROM pieces WHERE message = ?", id)
            self._touch()

    def drop_after(self, count: int) -> None:
        """Keep the first `count` messages. The others leave the conversation and stay in the file, unseen."""
        later = "SELECT id FROM messages WHERE session = ? AND NOT removed ORDER BY id LIMIT -1 OFFSET ?"
        with self._changing():
            self._database.write(f"UPDATE messages SET removed = 1 WHERE id IN ({later})", self.id, count)

    def set_system(self, text: str | None) -> None:
        text = None if text is None else encodable(text)
        with self._changing():
            self._database.write("UPDATE sessions SET system = ? WHERE id = ?", text, self.id)
        self._system = text

    def set_model(self, name: str) -> None:
        name = encodable(name)
        with self._changing():
            self._database.write("UPDATE sessions SET model = ? WHERE id = ?", name, self.id)
        self._model = name

    def rename(self, name: str) -> None:
        """Raises UsageError where another has the name, or where it is none."""
        if name == self._name:
            return
        with self._changing():
            name = free_name(self._database, name)
            self._database.write("UPDATE sessions SET name = ? WHERE id = ?", name, self.id)
        self._name = name

    def settings(self) -> dict[str, str]:
        rows = self._database.rows("SELECT name, value FROM settings WHERE session = ? ORDER BY name", self.id)
        return dict(cast(list[tuple[str, str]], rows))

    def set(self, name: str, value: str) -> None:
        """Remember one of `settings`."""
        with self._changing():
            self._database.write("INSERT OR REPLACE INTO settings VALUES (?, ?, ?)", self.id, encodable(name), encodable(value))

    def _touch(self) -> None:
        self._database.write("UPDATE sessions SET updated = ? WHERE id = ?", self._now(), self.id)

    def _check(self) -> None:
        assert self.is_open, "the session was closed"
        if self._failure:
            raise NotSaved(self._failure.what, self._failure.hint)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._check()
        try:
            with self._database.transaction():
                yield
        except NotSaved as failure:
            self._failure = failure
            raise


def pieces_by_message(database: Database) -> dict[tuple[Any, Any], str]:
    """The texts of unfinished answers, by message id and kind."""
    pieces: dict[tuple[Any, Any], list[str]] = {}
    for message, kind, text in database.rows("SELECT message, kind, text FROM pieces ORDER BY id"):
        pieces.setdefault((message, kind), []).append(cast(str, text))
    return {key: "".join(texts) for key, texts in pieces.items()}


def free_name(database: Database, name: str) -> str:
    """The name as it is stored. Raises UsageError where it is none or taken."""
    name = normal(name)
    plain = all(unicodedata.category(each)[0] in "LMN" or each in " .-_" for each in name)
    if not plain or not 0 < len(name) <= _MAX_NAME or name[0] in " -" or name[-1] == " ":
        hint = f"a name has 1 to {_MAX_NAME} letters, digits, spaces, dots, dashes or underscores, and begins with no dash"
        raise UsageError(f"{name!r} cannot be the name of a conversation", hint)
    if is_taken(database, name):
        raise UsageError(f"there is a conversation named {name!r} already", "take another name, or delete that one first")
    return name


def is_taken(database: Database, name: str) -> bool:
    return bool(database.rows("SELECT 1 FROM sessions WHERE name = ?", name))


def normal(name: str) -> str:
    """Letters with marks are one character, however they were typed."""
    return unicodedata.normalize("NFC", encodable(name))


def encodable(text: str) -> str:
    """Half a character, as broken input leaves it, becomes a question mark: no file takes it."""
    return text.encode("utf-8", "replace").decode()

"""Conversations kept on disk as they grow, and taken up again. Knows messages and their order; no engine and no template.

An answer's pieces are rows of their own until it is finished: adding one then costs the same however long the answer is.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self, cast

import platformdirs

from tokencli.errors import UsageError
from tokencli.locks import lock
from tokencli.world.sessions.file import Database
from tokencli.world.sessions.session import Session, StoredMessage, encodable, free_name, is_taken, normal, pieces_by_message

__all__ = ["Session", "SessionLine", "Sessions", "StoredMessage", "sessions_file"]

_FIRST_CHARACTERS = 200
_LINES = f"""
SELECT id, name, model, (SELECT count(*) FROM messages WHERE session = sessions.id AND NOT removed), updated,
    coalesce((SELECT substr(content, 1, {_FIRST_CHARACTERS}) FROM messages WHERE session = sessions.id AND NOT removed
        ORDER BY messages.id LIMIT 1), '')
FROM sessions ORDER BY updated DESC, sessions.rowid DESC
"""


@dataclass(frozen=True, slots=True)
class SessionLine:
    """One saved conversation in a list. `updated`: seconds since the epoch; `first`: the beginning of its first message."""

    name: str
    model: str
    messages: int
    updated: float
    first: str


def sessions_file() -> Path:
    return platformdirs.user_data_path("tokencli") / "sessions.db"


class Sessions:
    """All saved conversations. Use as a context manager and in one thread; other processes may have the same file open.

    Every method, and those of a Session, may raise NotSaved: a chat can go on without. Of a session that another process
    has open, `find` and its like raise UsageError; one that is open here already is given once more.
    """

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self.notes = database.notes
        self._database, self._now = database, now
        self._given: dict[str, Session] = {}

    @classmethod
    def open(cls, path: Path, now: Callable[[], float] = time.time) -> Self:
        """The conversations in the file at `path`, made where there is none; `notes` says what is to be told of it."""
        return cls(Database(path), now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for session in self._given.values():
            session.close()
        self._database.close()

    def create(self, model: str, name: str | None = None) -> Session:
        """A new conversation; without a name, one that tells when it began. Raises UsageError for a name it cannot have."""
        id, now = token_hex(8), self._now()
        with self._database.transaction():
            name = self._automatic_name(now) if name is None else free_name(self._database, name)
            insert = "INSERT INTO sessions (id, name, model, created, updated) VALUES (?, ?, ?, ?, ?)"
            self._database.write(insert, id, name, encodable(model), now, now)
        return self._take(id, name)

    def find(self, name: str) -> Session | None:
        return self._first("WHERE name = ?", normal(name))

    def latest(self) -> Session | None:
        return self._first("ORDER BY updated DESC, rowid DESC LIMIT 1")

    def lines(self, search: str | None = None) -> list[SessionLine]:
        """The saved conversations, latest first; `search`: those that have it in their name or in a message, in any case."""
        rows = cast(list[tuple[Any, ...]], self._database.rows(_LINES))
        if search is not None:
            wanted = search.casefold()
            having = self._having(wanted)
            rows = [row for row in rows if row[0] in having or wanted in row[1].casefold()]
        return [SessionLine(*row[1:]) for row in rows]

    def delete(self, name: str) -> None:
        """For good. Raises UsageError where there is none of that name, or where it is open, here or elsewhere."""
        rows = self._database.rows("SELECT id FROM sessions WHERE name = ?", normal(name))
        if not rows:
            raise UsageError(f"there is no saved conversation {name!r}", "take a name from the list")
        ((id,),) = cast(list[tuple[str]], rows)
        descriptor = self._lock(id, name)
        try:
            self._database.write("DELETE FROM sessions WHERE id = ?", id)
            self._lock_file(id).unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _automatic_name(self, now: float) -> str:
        name = time.strftime("%Y-%m-%d-%H%M", time.localtime(now))
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        return next(each for each in names if not is_taken(self._database, each))

    def _having(self, folded: str) -> set[object]:
        """Ids of the sessions with a message that has the text, in any case; SQLite alone knows case of ASCII only."""
        pieces = pieces_by_message(self._database)
        rows = cast(
            list[tuple[str, int, str]], self._database.rows("SELECT session, id, content FROM messages WHERE NOT removed")
        )
        return {session for session, id, content in rows if folded in (content + pieces.get((id, "answer"), "")).casefold()}

    def _first(self, condition: str, *values: str) -> Session | None:
        rows = cast(list[tuple[str, str]], self._database.rows(f"SELECT id, name FROM sessions {condition}", *values))
        try:
            return self._take(*rows[0]) if rows else None
        except LookupError:  # deleted meanwhile
            return None

    def _take(self, id: str, name: str) -> Session:
        given = self._given.get(id)
        if given and given.is_open:
            return given
        descriptor = self._lock(id, name)
        try:
            self._given[id] = Session(self._database, self._now, id, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return self._given[id]

    def _lock(self, id: str, name: str) -> int:
        """Raises UsageError where the session is open. Two writers would mix their messages."""
        try:
            with self._database.faults():
                return lock(self._lock_file(id), wait=False)
        except BlockingIOError:
            hint = "close it there, or take another with --session OTHER"
            raise UsageError(f"the conversation {name!r} is open in another chat", hint) from None

    def _lock_file(self, id: str) -> Path:
        return self._database.locks / id

"""The SQLite file that conversations are kept in: opened safely, its faults told as NotSaved. Knows SQLite and how the tables
look; what stands in them is for the rest of the room.

Kept from a kill at once: each commit is in the system's hands. Kept from a power cut within a second: see Syncer.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokencli.errors import NotSaved
from tokencli.locks import locked

SCHEMA_VERSION = 1
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE sessions (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, model TEXT NOT NULL, system TEXT,
    created REAL NOT NULL, updated REAL NOT NULL);
CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, role TEXT NOT NULL,
    content TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '', cut INTEGER NOT NULL, removed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX messages_by_session ON messages (session);
CREATE TABLE pieces (id INTEGER PRIMARY KEY, message INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE, kind TEXT NOT NULL,
    text TEXT NOT NULL);
CREATE TABLE settings (session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (session, name));
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
_WAIT_SECONDS = 10
_UNSYNCED_SECONDS = 0.5

_DAMAGED = ("it is damaged", "move it away to begin anew; `sqlite3 {path} .recover` may get the text out of it")
_FORBIDDEN = ("it may not be written", "check the permissions of {folder}")
_HELD = (f"another program has held it for {_WAIT_SECONDS} seconds", "end the program that uses {path}")
_FAULTS = {
    sqlite3.SQLITE_FULL: ("the disk is full", "make room on the disk of {folder}"),
    sqlite3.SQLITE_IOERR: ("the disk refuses: {error}", "look whether the disk of {folder} is full or failing"),
    sqlite3.SQLITE_READONLY: _FORBIDDEN,
    sqlite3.SQLITE_PERM: _FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check the permissions of {folder}"),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_PROTOCOL: _HELD,
}


class Database:
    """The open file, for one thread; others, in other processes too, have their own. `notes`: what to tell the user of it."""

    def __init__(self, path: Path) -> None:
        """Raises NotSaved. A file that is no database is moved aside."""
        self.path = path
        self.locks = path.parent / "locks"
        self.notes: tuple[str, ...] = ()
        with self.faults():
            self.locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            _close_to_others(path.parent)
            with locked(self.locks / "opening"):
                self._connection = self._opened()
            try:
                self._syncer = Syncer(_beside(path, "-wal"))
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._syncer.close()
        self._connection.close()

    def rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        with self.faults():
            return self._connection.execute(sql, values).fetchall()

    def write(self, sql: str, *values: object) -> int:
        """Carry out one statement; the id of the row it added."""
        try:
            added = self._connection.execute(sql, values).lastrowid
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from None
        self._syncer.wrote()
        return added or 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.faults():
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                yield
        self._syncer.wrote()

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Errors of the file and its folder become NotSaved."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from None
        except BlockingIOError:  # a lock that another holds
            raise
        except OSError as error:
            hint = f"check the permissions of {self.path.parent} and the room on its disk"
            raise NotSaved(f"conversations cannot be kept in {self.path}: {error.strerror}", hint) from None

    def _fault(self, error: sqlite3.DatabaseError) -> Exception:
        """What to tell the user; an error that is not the file's is our own mistake and stays as it is."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF  # the rest of it tells the kind of the kind
        if code not in _FAULTS:
            return error
        what, hint = (text.format(path=self.path, folder=self.path.parent, error=error) for text in _FAULTS[code])
        return NotSaved(f"conversations cannot be kept in {self.path}: {what}", hint)

    def _opened(self) -> sqlite3.Connection:
        try:
            return _connect(self.path)
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_ERROR:  # our statements do not go with its tables
                what = f"{self.path} is a database of another program: {error}"
                raise NotSaved(what, "move it away to begin anew") from None
            if code != sqlite3.SQLITE_NOTADB:
                raise
        aside = _move_aside(self.path)
        self.notes = (f"{self.path} was no database and is now {aside.name}; saved conversations begin anew",)
        return _connect(self.path)


def _connect(path: Path) -> sqlite3.Connection:
    """A connection to a file whose tables are there, private to the user. Raises sqlite3.Error, NotSaved, OSError."""
    with suppress(FileExistsError):  # only a new file: closing another descriptor of one in use drops SQLite's locks
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    for each in (path, _beside(path, "-wal"), _beside(path, "-shm")):
        with suppress(FileNotFoundError):
            _close_to_others(each)
    connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise NotSaved(f"{path} was written by a newer tokencli", "update tokencli, or move that file away to begin anew")
        connection.execute("PRAGMA journal_mode = WAL")
        if version < SCHEMA_VERSION:
            connection.executescript(_SCHEMA)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("SELECT count(*) FROM sessions").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _close_to_others(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & 0o077:
        path.chmod(mode & 0o700)


def _move_aside(path: Path) -> Path:
    """Rename the file and what belongs to it; its new path."""
    aside = _beside(path, f".broken-{time.time_ns()}")
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            _beside(path, ending).rename(_beside(aside, ending))
    return aside


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


class Syncer:
    """Has the system bring the write-ahead log to the disk, half a second after the first write that is not there yet.

    A thread, because a model may pause at any piece: the next write would come too late for a power cut, and none would wait
    for the disk while text streams. A fault of the disk shows at the next checkpoint, which SQLite syncs itself.
    """

    def __init__(self, log: Path, sync: Callable[[int], None] = os.fsync, delay_seconds: float = _UNSYNCED_SECONDS) -> None:
        self._log = os.open(log, os.O_RDWR)
        self._sync, self._delay_seconds = sync, delay_seconds
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sessions-sync", daemon=True)
        self._thread.start()

    def wrote(self) -> None:
        if not self._wanted.is_set():
            self._wanted.set()

    def close(self) -> None:
        self._closing.set()
        self._wanted.set()
        self._thread.join()
        os.close(self._log)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            self._closing.wait(self._delay_seconds)
            self._wanted.clear()
            with suppress(OSError):
                self._sync(self._log)

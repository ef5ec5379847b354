"""The engine's KV caches kept on disk between runs, one for each conversation, checked before native code reads one.

Knows files, their hashes and how much of the disk they may take; what a cache holds and when it fits is the caller's to describe.
An entry is NAME.json (description, size and hash), which names its payload NAME-HASH.state: a path that `find` gave never
becomes another's content. A cache that cannot be kept costs a new prefill, nothing else.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from types import TracebackType
from typing import Any, Self

import platformdirs

from tokencli.errors import TokencliError
from tokencli.locks import lock, locked

Description = Mapping[str, str | int | float | bool | None]
LIMIT_BYTES = 2 << 30
_DISK_PART = 10  # at most a tenth of what would be free without the caches
_SAVING = ".saving"


@dataclass(frozen=True, slots=True)
class Found:
    """The payload's path, or why there is none, in a sentence."""

    path: Path | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a NAME.json says."""

    description: dict[str, Any]
    bytes: int
    hash: str


def states_folder() -> Path:
    return platformdirs.user_cache_path("tokencli") / "states"


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class States:
    """The caches in a folder, by the id of a conversation. Use as a context manager; several processes may use one folder.

    `free_bytes`: how much of the folder's disk is free. `now`: seconds since the epoch; the least recently used go first.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int = LIMIT_BYTES,
        free_bytes: Callable[[Path], int] = _free_bytes,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._limit, self._free_bytes, self._now = folder, limit_bytes, free_bytes, now
        self._saving: dict[Path, int] = {}  # temporary files and the descriptors that lock them

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was being saved and never kept."""
        for path in list(self._saving):
            self._discard(path)

    def room(self) -> int:
        """Bytes of the largest cache that would be kept: ask before writing one. 0 where the folder cannot be used."""
        try:
            self._make_folder()
            taken = sum(map(_size, self._folder.iterdir()))
            return min(self._limit, (self._free_bytes(self._folder) + taken) // _DISK_PART)
        except OSError:
            return 0

    def path_for_saving(self, session: str) -> Path:
        """An empty file to write a cache into, for `keep` or for nothing. Raises TokencliError where the folder takes none."""
        try:
            self._make_folder()
            with locked(self._lock_file):
                self._sweep()
                descriptor, name = mkstemp(_SAVING, f"{_name(session)}-", self._folder)  # 0600
                os.close(descriptor)
                path = Path(name)
                self._saving[path] = lock(path)
        except OSError as error:
            hint = "check the folder's permissions and its disk"
            raise TokencliError(f"{self._folder} cannot be used: {error.strerror}", hint) from None
        return path

    def keep(self, session: str, path: Path, description: Description) -> str | None:
        """Put what was written to `path` in place of the session's cache; why it is not kept, None where it is."""
        try:
            size, room = path.stat().st_size, self.room()
            if size > room:
                return f"the cache takes {size:,} bytes, and {room:,} may be kept"
            entry = _Entry(dict(description), size, _hash(path, description))
            with locked(self._lock_file):
                self._place(_name(session), path, entry)
                self._evict(_name(session), room)
        except OSError as error:
            return f"the cache cannot be kept in {self._folder}: {error.strerror}"
        finally:
            self._discard(path)
        return None

    def find(self, session: str, description: Description) -> Found:
        """The session's cache if it was kept with this very description and is whole; an entry that is not is removed."""
        name = _name(session)
        try:
            entry = self._read(name)
            payload = self._payload(name, entry)
            if why := _difference(entry, description) or _damage(entry, payload):
                self._remove(name, entry)
                return Found(why=why)
            self._use(name)
        except FileNotFoundError:
            return Found(why="no cache was kept of this conversation")
        except OSError as error:
            return Found(why=f"the kept cache cannot be read: {error.strerror}")
        except (ValueError, TypeError, KeyError):
            self.forget(session)
            return Found(why="what was noted of the kept cache is damaged")
        return Found(payload)

    def forget(self, session: str) -> None:
        """Remove the session's cache, whole or damaged."""
        with suppress(OSError), locked(self._lock_file):
            self._entry_file(_name(session)).unlink(missing_ok=True)
            self._sweep()

    # the folder; what changes it holds its lock

    @property
    def _lock_file(self) -> Path:
        return self._folder / ".lock"

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)

    def _entry_file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _payload(self, name: str, entry: _Entry) -> Path:
        return self._folder / f"{name}-{entry.hash[:32]}.state"

    def _read(self, name: str) -> _Entry:
        """Raises OSError, ValueError, TypeError, KeyError."""
        found = json.loads(self._entry_file(name).read_text("utf-8"))
        return _Entry(dict(found["description"]), int(found["bytes"]), bytes.fromhex(found["hash"]).hex())

    def _place(self, name: str, path: Path, entry: _Entry) -> None:
        """The entry's file is renamed last: until then the older one holds."""
        path.chmod(0o600)
        path.replace(self._payload(name, entry))
        new = self._folder / f"{name}{_SAVING}"
        text = json.dumps({"description": entry.description, "bytes": entry.bytes, "hash": entry.hash}, indent=2)
        new.touch(0o600)
        new.write_text(text, "utf-8")
        new.replace(self._entry_file(name))
        self._use(name)

    def _use(self, name: str) -> None:
        os.utime(self._entry_file(name), (self._now(), self._now()))

    def _remove(self, name: str, entry: _Entry) -> None:
        """Only if the entry is still the same: another process may have kept a good one since."""
        with suppress(OSError, ValueError, TypeError, KeyError), locked(self._lock_file):
            if self._read(name) == entry:
                self._entry_file(name).unlink()
                self._payload(name, entry).unlink(missing_ok=True)

    def _evict(self, kept: str, room: int) -> None:
        """The least recently used go until the others fit into `room`, never the one just kept."""
        self._sweep()
        files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
        payloads = {file: self._payload(file.stem, self._read(file.stem)) for file in files}
        taken = sum(payload.stat().st_size for payload in payloads.values())
        for file, payload in payloads.items():
            if taken > room and file.stem != kept:
                taken -= payload.stat().st_size
                file.unlink()
                payload.unlink()

    def _sweep(self) -> None:
        """Remove entries without a payload, payloads without an entry, and what dead processes were saving."""
        named = set()
        for file in self._folder.glob("*.json"):
            try:
                payload = self._payload(file.stem, self._read(file.stem))
                payload.stat()
                named.add(payload)
            except (OSError, ValueError, TypeError, KeyError):
                file.unlink()
        for path in set(self._folder.glob("*.state")) - named:
            path.unlink()
        for path in set(self._folder.glob(f"*{_SAVING}")) - set(self._saving):
            with suppress(BlockingIOError):
                descriptor = lock(path, wait=False)
                path.unlink()
                os.close(descriptor)

    def _discard(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        if path in self._saving:
            os.close(self._saving.pop(path))


def _size(path: Path) -> int:
    """0 for a file that another process has just removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _name(session: str) -> str:
    """A file's name that tells nothing of the conversation and holds no path."""
    return hashlib.blake2b(session.encode(), digest_size=16).hexdigest()


def _hash(payload: Path, description: Description) -> str:
    """Of both: neither can be exchanged alone. Raises OSError."""
    text = json.dumps(dict(description), sort_keys=True).encode()
    with payload.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(text, digest_size=32)).hexdigest()


def _difference(entry: _Entry, description: Description) -> str | None:
    kept = entry.description
    keys = sorted(key for key in kept.keys() | description.keys() if kept.get(key) != description.get(key))
    return f"the kept cache was made with another {', '.join(keys)}" if keys else None


def _damage(entry: _Entry, payload: Path) -> str | None:
    """Raises OSError."""
    size = payload.stat().st_size
    if size != entry.bytes:
        return f"the kept cache has {size:,} bytes instead of {entry.bytes:,}"
    return None if _hash(payload, entry.description) == entry.hash else "the kept cache does not match its hash"

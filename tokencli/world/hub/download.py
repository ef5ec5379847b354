"""Brings one file into the Hugging Face cache: goes on where the last attempt ended, whatever ended it.

huggingface_hub gives each attempt a file of its own and deletes it when the attempt fails; so the bytes are fetched here, with
its session (proxies, redirects, access token), under its lock, into the place where it looks for them.
"""

import hashlib
import os
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencli.core import Event, Fetching, Note
from tokencli.errors import ModelUnavailable, TokencliError
from tokencli.listing import File
from tokencli.world.hub.faults import LONGEST_WAIT, fault_of, of_disk, wrong_hash

if TYPE_CHECKING:
    from tokencli.world.hub.api import Hub

TRIES = 5  # without a single new byte
_TOLD_EVERY = 0.2
_RATE_OVER = 5.0
_PIECE = 1 << 20


def download(hub: "Hub", repo: str, commit: str, file: File) -> Generator[Event, None, tuple[Path, bool]]:
    """The file in its snapshot, and whether its hash was checked here; where it lay already it was not.

    Raises ModelUnavailable; what was fetched stays for the next time.
    """
    here = hub.cache.find(repo, commit, file)
    if here:
        return here, False
    where = f"{file.path} of hf:{repo}"
    with _disk_faults(hub.cache.blob(repo, file).parent):
        blob, partial = hub.cache.blob(repo, file), hub.cache.partial(repo, file)
        for folder in (blob.parent, hub.cache.lock(repo, file).parent):
            folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            yield from _locked(stack, hub.cache.lock(repo, file), partial, file)
            missing = not blob.exists() or blob.stat().st_size != file.bytes
            if missing:
                yield from _Transfer(hub, repo, commit, file, partial, where).run()
                partial.replace(blob)
            return hub.cache.publish(repo, commit, file), missing


@contextmanager
def _disk_faults(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise of_disk(error, folder) from None


def _locked(stack: ExitStack, lock: Path, partial: Path, file: File) -> Generator[Event, None, None]:
    """Wait for another process that fetches the same file, telling how far it is."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    told = False
    while True:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=1))
            return
        except Timeout:
            if not told:
                told = True
                yield Note(f"another process is downloading {file.path}: waiting for it")
            yield Fetching(_size(partial), file.bytes)


class _Transfer:
    """The bytes of one file on their way into `partial`."""

    def __init__(self, hub: "Hub", repo: str, commit: str, file: File, partial: Path, where: str) -> None:
        self._hub, self._repo, self._commit, self._file = hub, repo, commit, file
        self._partial, self._where = partial, where
        self._rate = Rate(hub.now)
        self._done = 0
        self._told = -_TOLD_EVERY
        self._digest: Any = None

    def run(self) -> Generator[Event, None, None]:
        """Fetch until the file is whole, and check its hash."""
        yield from self._take_up()
        self._check_disk()
        tried = 0
        with self._partial.open("ab", buffering=0) as out:
            while self._done < self._file.bytes:
                before = self._done
                reason, wait = yield from self._attempt(out)
                if self._done >= self._file.bytes:
                    break
                tried = 0 if self._done > before else tried + 1
                if tried > TRIES:
                    raise reason
                wait = 2.0**tried / 2 if wait is None else min(wait, LONGEST_WAIT)
                yield Note(f"{reason.what}; going on in {wait:.0f} s")
                self._hub.sleep(wait)
        yield Fetching(self._done, self._file.bytes, self._rate.per_second())
        if self._file.sha256 and self._digest.hexdigest() != self._file.sha256:
            self._partial.unlink()
            raise wrong_hash(self._where)

    def _take_up(self) -> Generator[Event, None, None]:
        """Count and hash what an earlier attempt left."""
        self._digest = hashlib.sha256()
        self._done = _size(self._partial)
        if self._done > self._file.bytes:
            self._partial.unlink()
            self._done = 0
        if not self._done:
            return
        with self._partial.open("rb") as kept:
            while piece := kept.read(_PIECE):
                self._digest.update(piece)
        yield Fetching(self._done, self._file.bytes)

    def _attempt(self, out: Any) -> Generator[Event, None, tuple[TokencliError, float | None]]:
        """One request for the rest; why it ended, and how long the server asks to wait. Raises what waiting cannot mend."""
        try:
            with self._hub.stream(self._repo, self._commit, self._file, self._done) as chunks:
                for chunk in chunks:
                    piece = chunk[: self._file.bytes - self._done]
                    _write(out, piece)
                    self._digest.update(piece)
                    self._done += len(piece)
                    self._rate.add(len(piece))
                    if self._hub.now() - self._told >= _TOLD_EVERY:
                        self._told = self._hub.now()
                        self._check_disk()
                        yield Fetching(self._done, self._file.bytes, self._rate.per_second())
        except Exception as error:
            fault = fault_of(error, self._where)
            if not fault:
                raise
            if not fault.passing:
                raise fault.error from None
            return fault.error, fault.wait
        what = f"the connection ended after {self._done:,} of {self._file.bytes:,} bytes of {self._where}"
        return ModelUnavailable(what, "try again: what was fetched is kept"), None

    def _check_disk(self) -> None:
        """Raises ModelUnavailable before the disk is full: other programs write to it, too (report A6-01)."""
        self._hub.check_room(self._file.bytes - self._done)


class Rate:
    """Bytes per second over the last seconds."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self._began = now()
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> None:
        now = self._now()
        self._recent.append((now, count))
        while self._recent[0][0] < now - _RATE_OVER:
            self._recent.popleft()

    def per_second(self) -> float | None:
        span = min(self._now() - self._began, _RATE_OVER)
        return sum(count for _, count in self._recent) / span if span > 0.5 else None


def _write(out: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0

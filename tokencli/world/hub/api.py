"""Asks the hub what a repository holds, and for the bytes of its files. Knows huggingface_hub; imports it only to fetch."""

import difflib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

import tokencli
from tokencli.core import Event
from tokencli.errors import ModelNotFound, ModelUnavailable
from tokencli.listing import File, Listing
from tokencli.world.hub.cache import Cache
from tokencli.world.hub.faults import LONGEST_WAIT, disk_full, fault_of, web_page, wrong_length

T = TypeVar("T")

TRIES = 4
TRIES_UNREACHABLE = 2  # who has no network wants to know it soon
_COMMIT, _ETAG = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
MARGIN = 256 << 20  # bytes of the disk that are left alone
_CONNECT_SECONDS = 10.0
_NO_TELEMETRY = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_UPDATE_CHECK")


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk of a folder that may not be there yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub at `endpoint` (HF_ENDPOINT if None), with the access token that huggingface_hub finds, and the shared cache.

    `stall_seconds`: how long nothing may come before a request is tried anew; None is huggingface_hub's own limit.
    All methods raise a ModelUnavailable of world/hub/faults.py.
    """

    cache: Cache = field(default_factory=Cache)
    endpoint: str | None = None
    stall_seconds: float | None = None
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    free: Callable[[Path], int] = free_bytes

    def listing(self, repo: str, revision: str | None = None) -> Listing:
        """All files of the repository, with sizes and hashes, at the commit that `revision` (else main) is now."""
        path = f"models/{repo}" + (f"/revision/{quote(revision, safe='')}" if revision else "")
        try:
            info = self._patiently(lambda: self._ask(path, {"blobs": "true"}, f"hf:{repo}"), f"hf:{repo}")
        except ModelNotFound as missing:
            near = self._near(repo)
            hint = f"did you mean hf:{near}?" if near and near != repo else missing.hint
            raise ModelNotFound(missing.what, hint) from None
        return _listing(info, f"hf:{repo}")

    def read(self, repo: str, commit: str, file: File, start: int, end: int) -> bytes:
        """The bytes of a file from `start` to `end`, or to its own end."""
        end = min(end, file.bytes)

        def fetched() -> bytes:
            data = bytearray()
            with self.stream(repo, commit, file, start, end) as chunks:
                while len(data) < end - start and (chunk := next(chunks, b"")):
                    data += chunk
            return bytes(data[: end - start])

        return self._patiently(fetched, f"{file.path} of hf:{repo}")

    def download(self, repo: str, commit: str, file: File) -> Generator[Event, None, tuple[Path, bool]]:
        """Bring the file into the cache, telling how it goes; where it is in the end, and whether its hash was checked."""
        from tokencli.world.hub.download import download

        return (yield from download(self, repo, commit, file))

    def check_room(self, missing: int) -> None:
        """Raises ModelUnavailable where the disk does not hold so many bytes more."""
        if (beyond := missing + MARGIN - self.free(self.cache.folder)) > 0 and missing:
            raise disk_full(self.cache.folder, beyond)

    @contextmanager
    def stream(self, repo: str, commit: str, file: File, start: int, end: int | None = None) -> Iterator[Iterator[bytes]]:
        """The file's bytes from `start` as they come. Raises what the library raises, and our own for a wrong answer."""
        import httpx2

        library = _huggingface()
        url = library.hf_hub_url(repo, file.path, revision=commit, endpoint=self.endpoint)
        headers = _headers(library) | {"Accept-Encoding": "identity", "Range": f"bytes={start}-{'' if end is None else end - 1}"}
        timeout = httpx2.Timeout(self._seconds, connect=_CONNECT_SECONDS)
        with library.utils.get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            library.utils.hf_raise_for_status(response)
            skipped = _check_answer(response, file, start, f"{file.path} of hf:{repo}")
            yield _from(response.iter_raw(), skipped)

    @property
    def _seconds(self) -> float:
        return self.stall_seconds or float(_huggingface().constants.HF_HUB_DOWNLOAD_TIMEOUT)

    def _ask(self, path: str, parameters: dict[str, str], where: str) -> Any:
        """What the hub's API answers; not through HfApi, whose import takes a third of a second."""
        library = _huggingface()
        address = f"{self.endpoint or library.constants.ENDPOINT}/api/{path}"
        response = library.utils.get_session().get(address, params=parameters, headers=_headers(library), timeout=self._seconds)
        library.utils.hf_raise_for_status(response)
        try:
            return response.json()
        except ValueError:
            raise web_page(where) from None

    def _near(self, repo: str) -> str | None:
        """A repository whose name is nearly this one."""
        try:
            found = [each["id"] for each in self._ask("models", {"search": repo.partition("/")[2], "limit": "20"}, repo)]
        except Exception:  # only a hint: the error that asks for it is the one to be told
            return None
        return next(iter(difflib.get_close_matches(repo, found, n=1, cutoff=0.5)), None)

    def _patiently(self, call: Callable[[], T], where: str) -> T:
        """The call's result; what may pass is tried again, with growing waits or those that the server asks for."""
        for tried in count(1):
            try:
                return call()
            except Exception as error:
                fault = fault_of(error, where)
                if not fault:
                    raise
                if not fault.passing or tried >= (TRIES_UNREACHABLE if fault.unreachable else TRIES):
                    raise fault.error from None
                self.sleep(min(fault.wait or 2.0 ** (tried - 1), LONGEST_WAIT))
        raise AssertionError("unreachable")


def _headers(library: Any) -> dict[str, str]:
    found: dict[str, str] = library.utils.build_hf_headers(library_name="tokencli", library_version=tokencli.__version__)
    return found


def _listing(info: Any, where: str) -> Listing:
    """Raises ModelUnavailable where it is no answer of a hub: names and hashes become paths on this disk."""
    try:
        files = tuple(_file(each) for each in info["siblings"] if each.get("size") is not None)
        if _COMMIT.fullmatch(info["sha"]) and all(map(_is_inside, files)):
            return Listing(info["id"], info["sha"], files)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise ModelUnavailable(f"what answers for {where} is no hub", "check HF_ENDPOINT")


def _file(described: dict[str, Any]) -> File:
    sha256, oid = (described.get("lfs") or {}).get("sha256"), described.get("blobId")
    return File(described["rfilename"], int(described["size"]), sha256, oid)


def _is_inside(file: File) -> bool:
    """Whether path and hash stay in the folder they are meant for."""
    path = PurePosixPath(file.path)
    return not path.is_absolute() and ".." not in path.parts and _ETAG.fullmatch(file.etag or "") is not None


def _check_answer(response: Any, file: File, start: int, where: str) -> int:
    """How many bytes to skip: all up to `start` where the server does not do ranges. Raises ModelUnavailable."""
    if response.headers.get("Content-Type", "").lower().startswith("text/html"):
        raise web_page(where)
    length = response.headers.get("Content-Range", "").rpartition("/")[2] if response.status_code == 206 else None
    length = length or response.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) != file.bytes:
        raise wrong_length(where, int(length), file.bytes)
    return 0 if response.status_code == 206 else start


def _from(chunks: Iterator[bytes], skipped: int) -> Iterator[bytes]:
    for chunk in chunks:
        if skipped < len(chunk):
            yield chunk[skipped:]
        skipped = max(skipped - len(chunk), 0)


def _huggingface() -> Any:
    """The library, told first to send nothing about this computer and to print nothing."""
    for name in _NO_TELEMETRY:
        os.environ[name] = "1"
    import huggingface_hub
    import huggingface_hub.utils

    huggingface_hub.utils.logging.set_verbosity(logging.CRITICAL)
    return huggingface_hub

"""The Hugging Face cache on this disk: where a repository's files are, what lies there, and how a file leaves it.

Knows the layout (models--ORG--REPO/{blobs,snapshots,refs}, symlinks from the one to the other, or files where there are none);
imports no library, so that what is cached runs without one.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokencli.listing import File, Listing
from tokencli.paths import typed

_HASH_LENGTHS = {64: "sha256", 40: "oid"}


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where huggingface_hub keeps its files (its constants.py), found without importing it."""
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")  # noqa: PTH118
    folder = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")  # noqa: PTH118
    return typed(os.path.expandvars(folder))


@dataclass(frozen=True, slots=True)
class Cache:
    folder: Path = field(default_factory=cache_folder)

    def storage(self, repo: str) -> Path:
        return self.folder / f"models--{repo.replace('/', '--')}"

    def blob(self, repo: str, file: File) -> Path:
        assert file.etag
        return self.storage(repo) / "blobs" / file.etag

    def partial(self, repo: str, file: File) -> Path:
        """What is there of a file on its way: one for all attempts, so that each goes on where the last one ended."""
        blob = self.blob(repo, file)
        return blob.with_name(f"{blob.name}.incomplete")

    def fetched_bytes(self, repo: str, file: File) -> int:
        """What an attempt that was cut short left of a file, or all of it under another revision."""
        return min(_size(self.blob(repo, file)) or _size(self.partial(repo, file)) or 0, file.bytes)

    def lock(self, repo: str, file: File) -> Path:
        return self.folder / ".locks" / self.storage(repo).name / f"{file.etag}.lock"

    def snapshot(self, repo: str, commit: str, file: File) -> Path:
        return self.storage(repo) / "snapshots" / commit / file.path

    def find(self, repo: str, commit: str, file: File) -> Path | None:
        """The file where it lies whole as far as its size tells."""
        path = self.snapshot(repo, commit, file)
        return path if _size(path) == file.bytes else None

    def publish(self, repo: str, commit: str, file: File) -> Path:
        """Give the blob its name in the snapshot; where the file system has no symlinks the blob itself goes there (A6-11)."""
        blob, path = self.blob(repo, file), self.snapshot(repo, commit, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            if os.environ.get("HF_HUB_DISABLE_SYMLINKS", "").upper() in ("1", "ON", "YES", "TRUE"):
                raise OSError("symlinks are switched off")
            path.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:
            blob.replace(path)
        return path

    def remember_main(self, repo: str, commit: str) -> None:
        """What `main` was when it was asked for: other tools go by it when they are offline."""
        ref = self.storage(repo) / "refs" / "main"
        with contextlib.suppress(OSError):
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit, "utf-8")

    def repositories(self) -> list[str]:
        """Those of which a GGUF is here."""
        found = sorted(self.folder.glob("models--*--*")) if self.folder.is_dir() else []
        return [repo for each in found if self.listing(repo := each.name.removeprefix("models--").replace("--", "/", 1))]

    def listing(self, repo: str, commit: str | None = None) -> Listing | None:
        """The GGUF files of a repository that are here: at the commit, else at that of main or the latest that has any."""
        snapshots = self.storage(repo) / "snapshots"
        commits = [commit] if commit else self._commits(repo)
        for each in commits:
            if files := tuple(_ggufs(snapshots / each)):
                return Listing(repo, each, files)
        return None

    def _commits(self, repo: str) -> list[str]:
        try:
            dated = [(each.stat().st_mtime, each.name) for each in (self.storage(repo) / "snapshots").iterdir()]
        except OSError:
            return []
        main = ""
        with contextlib.suppress(OSError):
            main = (self.storage(repo) / "refs" / "main").read_text("utf-8").strip()
        return [name for _, name in sorted(dated, key=lambda each: (each[1] == main, each), reverse=True)]

    def remove(self, repo: str, commit: str, file: File) -> int:
        """Take the file out of the snapshot; the bytes freed: none where another revision has the same content."""
        path = self.snapshot(repo, commit, file)
        target = path.resolve()
        freed = path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
        path.unlink(missing_ok=True)
        if target != path and not self._is_named(repo, target):
            blob = self.blob(repo, file)
            freed = 0 if blob.is_symlink() else _size(blob) or 0  # a link leads to a store that repositories share
            blob.unlink(missing_ok=True)
        self._remove_empty(repo, path.parent)
        return freed

    def discard(self, repo: str, commit: str, file: File) -> None:
        """Take a damaged file away, also where another revision names it: the next download puts it back whole."""
        path = self.snapshot(repo, commit, file)
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def remove_partials(self, repo: str) -> int:
        """Remove what downloads that were cut short left, but those that go on just now; the bytes freed."""
        from filelock import FileLock, Timeout

        freed = 0
        for path in (self.storage(repo) / "blobs").glob("*.incomplete"):
            lock = self.folder / ".locks" / self.storage(repo).name / f"{path.stem}.lock"
            lock.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(Timeout), FileLock(lock, timeout=0):
                freed += _size(path) or 0
                path.unlink(missing_ok=True)
        return freed

    def _is_named(self, repo: str, target: Path) -> bool:
        return any(each.resolve() == target for each in (self.storage(repo) / "snapshots").rglob("*") if each.is_symlink())

    def _remove_empty(self, repo: str, folder: Path) -> None:
        """The snapshot's folders that hold nothing any more, and the repository's when it has no snapshot left."""
        storage = self.storage(repo)
        with contextlib.suppress(OSError):
            while folder != storage:
                folder.rmdir()
                folder = folder.parent
            if not any((storage / "blobs").iterdir()):
                shutil.rmtree(storage)


def _ggufs(snapshot: Path) -> Iterator[File]:
    for path in sorted(snapshot.rglob("*")):
        if path.suffix.lower() == ".gguf" and (size := _size(path)) is not None:
            blob = path.readlink().name if path.is_symlink() else ""
            known = {_HASH_LENGTHS[len(blob)]: blob} if len(blob) in _HASH_LENGTHS else {}
            yield File(path.relative_to(snapshot).as_posix(), size, **known)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None

"""Remembers which files a name of the hub stands for, and that their hashes were right: what makes a run need no network.

One JSON file in the user's data folder; knows the disk, and no hub.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencli.core import Event, Verifying
from tokencli.errors import BadModelFile
from tokencli.listing import File, HubModel
from tokencli.paths import stamp_of

_PIECE = 4 << 20
_TOLD_EVERY = 64  # pieces


@dataclass(frozen=True, slots=True)
class Pins:
    file: Path

    @classmethod
    def of_user(cls) -> "Pins":
        import platformdirs

        return cls(platformdirs.user_data_path("tokencli") / "models.json")

    def of(self, name: str) -> HubModel | None:
        return next((each for each in self.all() if each.name == name), None)

    def all(self) -> list[HubModel]:
        try:
            found = json.loads(self.file.read_text("utf-8"))["models"]
            return [_model(each) for each in found]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def put(self, model: HubModel) -> None:
        """Pin the model under its name. A data folder that cannot be written to costs another look at the hub, nothing else."""
        with contextlib.suppress(OSError), self._locked():
            self._write([*(each for each in self.all() if each.name != model.name), model])

    def remove(self, gone: HubModel) -> None:
        """Forget all names that stand for any of these files."""
        with self._locked():
            self._write([each for each in self.all() if not set(each.paths) & set(gone.paths)])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock

        self.file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.file.with_suffix(".lock")):
            yield

    def _write(self, models: list[HubModel]) -> None:
        part = self.file.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"version": 1, "models": [dataclasses.asdict(each) for each in models]}, indent=1), "utf-8")
        part.replace(self.file)


def _model(read: dict[str, Any]) -> HubModel:
    files = tuple(File(**each) for each in read["files"])
    verified = tuple(tuple(each) if each else None for each in read["verified"])
    return HubModel(**{**read, "files": files, "paths": tuple(read["paths"]), "verified": verified})


def is_there(model: HubModel) -> bool:
    """Whether all files lie on this disk in their size."""
    return len(model.paths) == len(model.files) and all(
        (stamp := stamp_of(Path(path))) and stamp[0] == file.bytes for path, file in zip(model.paths, model.files, strict=True)
    )


def is_verified(model: HubModel) -> bool:
    """Whether the hashes were found right, and no file has changed since. True of files whose hash nobody tells."""
    stamps = (stamp_of(Path(path)) for path in model.paths)
    return all(
        not file.sha256 or (stamp and stamp == known)
        for file, stamp, known in zip(model.files, stamps, model.verified, strict=True)
    )


def verified(model: HubModel) -> Generator[Event, None, HubModel]:
    """Read what was not verified yet and compare hashes. Raises BadModelFile for the first file that is not what it should be."""
    stamps: list[tuple[int, int] | None] = []
    for file, path, known in zip(model.files, map(Path, model.paths), model.verified, strict=True):
        stamp = stamp_of(path)
        if file.sha256 and stamp != known and (yield from _hash(path, file.bytes)) != file.sha256:
            hint = f"`tokencli models pull {model.name}` fetches it again"
            raise BadModelFile(f"{path} is damaged: it has not the hash that the hub lists", hint)
        stamps.append(stamp if file.sha256 else None)
    return dataclasses.replace(model, verified=tuple(stamps))


def _hash(path: Path, total: int) -> Generator[Event, None, str]:
    digest, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                if done // _PIECE % _TOLD_EVERY == 0:
                    yield Verifying(done, total)
    except OSError as error:
        raise BadModelFile(f"{path} cannot be read: {error.strerror}", "check the disk") from None
    return digest.hexdigest()

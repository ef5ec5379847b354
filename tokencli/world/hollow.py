"""Hollow files: the headers of a model that is not downloaded, each in a sparse file of the model's full size.

All that reads a header can read them; nothing else may: where the weights should be there are zeros. Knows the disk, no format.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokencli.errors import TokencliError
from tokencli.listing import File, HubModel


@dataclass(frozen=True, slots=True)
class Hollows:
    folder: Path

    def of(self, model: HubModel, fetch: Callable[[File], bytes]) -> Path:
        """The hollow model, named by its first file; `fetch` gives a file's header where it is not here yet."""
        folder = self.folder / model.repo.replace("/", "--") / model.commit
        for file in model.files:
            path = folder / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                _write_sparse(path, fetch(file), file.bytes)
        return folder / model.files[0].path

    def remove(self, repo: str) -> None:
        shutil.rmtree(self.folder / repo.replace("/", "--"), ignore_errors=True)


def _write_sparse(path: Path, header: bytes, size: int) -> None:
    """Under another name until it is whole. Raises TokencliError where the disk does not take it."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as file:
            file.write(header)
            file.truncate(size)
        new.replace(path)
    except OSError as error:
        raise TokencliError(f"{path.parent} takes no file of {size:,} bytes, even an empty one: {error.strerror}") from None

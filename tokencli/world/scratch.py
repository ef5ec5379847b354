"""Room on the disk for what is needed only while a command runs: a folder that goes with it. Knows no use of it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scratch:
    """`free`: bytes free where a folder is."""

    folder: Path
    free: Callable[[Path], int]

    def room(self) -> int:
        """Bytes that are free for it. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.free(self.folder)

    @contextlib.contextmanager
    def place(self) -> Iterator[Path]:
        """An empty folder, removed at the end; also those that a killed process has left. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.iterdir():
            if not _runs(left.name.partition("-")[0]):
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{os.getpid()}-", dir=self.folder, ignore_cleanup_errors=True) as place:
            yield Path(place)


def _runs(process: str) -> bool:
    import psutil

    return process.isdecimal() and psutil.pid_exists(int(process))

"""Remembers what a self-test found out about this build on this CPU, so that it is found out once.

One verdict so far: that the CPU's extra buffers (repacked weights, AMX) crash at the first decode and are left off.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

NO_EXTRA_BUFFERS = "no extra buffers"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts by build and CPU, in one small file of the user's cache folder."""

    file: Path
    key: str

    def extra_buffers_crash(self) -> bool:
        return self._read().get(self.key) == NO_EXTRA_BUFFERS

    def remember_extra_buffers_crash(self) -> None:
        """Written whole and then renamed; a cache folder that cannot be written costs a second self-test, nothing else."""
        text = json.dumps({**self._read(), self.key: NO_EXTRA_BUFFERS}, indent=2)
        part = self.file.with_suffix(f".{os.getpid()}.part")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, "utf-8")
            part.replace(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def for_this_machine() -> Verdicts:
    file = platformdirs.user_cache_path("tokencli") / "verdicts.json"
    return Verdicts(file, build_and_cpu())


def build_and_cpu(root: Path = Path("/")) -> str:
    """A key that changes with the installed CPU library and with the processor's features."""
    spec = importlib.util.find_spec("llama_cpp")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    libraries = sorted(folder.glob("*ggml-cpu*"))
    build = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in libraries]
    return hashlib.sha256("\n".join([*build, _cpu(root)]).encode()).hexdigest()[:16]


def _cpu(root: Path) -> str:
    try:
        lines = (root / "proc/cpuinfo").read_text().split("\n\n")[0].split("\n")
    except OSError:
        import platform

        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags")))

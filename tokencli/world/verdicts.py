"""Remembers what failed here, so that it is found out once: by build and CPU, and for GPUs by library and driver.

Verdicts: that the CPU's extra buffers (repacked weights, AMX) crash at the first decode, in which mode the devices can be listed,
and how much less than its free memory a device gave to an architecture. And, no failure: what shaders are there for.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tokencli.paths import stamp_of

NO_EXTRA_BUFFERS = "no extra buffers"
_SHADERS = " shaders of "
_VULKAN_DRIVERS = ("usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "etc/vulkan/icd.d")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts by `key` (build and CPU) and `gpu_key` (library and drivers), in one small file of the user's cache folder."""

    file: Path
    key: str
    gpu_key: str = "no driver"

    def extra_buffers_crash(self) -> bool:
        return self._read().get(self.key) == NO_EXTRA_BUFFERS

    def remember_extra_buffers_crash(self) -> None:
        self._write({self.key: NO_EXTRA_BUFFERS})

    def mode(self) -> str:
        """The mode in which the devices could be listed after they could not be; empty where nothing failed."""
        return str(self._read().get(f"{self.gpu_key} mode") or "")

    def remember_mode(self, mode: str) -> None:
        self._write({f"{self.gpu_key} mode": mode})

    def margin(self, device: str, architecture: str) -> int:
        """Bytes that a device (by its description) is to be left on top of the profile's headroom."""
        found = self._read().get(f"{self.gpu_key} margin {device} {architecture}")
        return found if isinstance(found, int) and found > 0 else 0

    def remember_margin(self, device: str, architecture: str, size: int) -> None:
        self._write({f"{self.gpu_key} margin {device} {architecture}": size})

    def has_compiled(self, architecture: str, quant: str) -> bool:
        """Whether such a model has answered here: what a driver compiles depends on both."""
        return f"{self.gpu_key}{_SHADERS}{architecture} {quant}" in self._read()

    def remember_compiled(self, architecture: str, quant: str) -> None:
        self._write({f"{self.gpu_key}{_SHADERS}{architecture} {quant}": "compiled"})

    def forget(self) -> int:
        """Take all back; how many failures there were."""
        count = sum(_SHADERS not in key for key in self._read())
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
        return count

    def _write(self, more: Mapping[str, str | int]) -> None:
        """Written whole and then renamed; a cache folder that cannot be written costs a second self-test, nothing else."""
        text = json.dumps({**self._read(), **more}, indent=2)
        part = self.file.with_suffix(f".{os.getpid()}.part")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, "utf-8")
            part.replace(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _read(self) -> dict[str, str | int]:
        try:
            found = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def for_this_machine() -> Verdicts:
    file = platformdirs.user_cache_path("tokencli") / "verdicts.json"
    return Verdicts(file, build_and_cpu(), library_and_drivers())


def build_and_cpu(root: Path = Path("/")) -> str:
    """A key that changes with the installed CPU library and with the processor's features."""
    return _hashed([*_versions(_library_folder().glob("*ggml-cpu*")), _cpu(root)])


def library_and_drivers(root: Path = Path("/")) -> str:
    """A key that changes with the installed library, the kernel, NVIDIA's module and the Vulkan drivers."""
    kernel = [_text(root / name) for name in ("proc/sys/kernel/osrelease", "proc/driver/nvidia/version")]
    manifests = [path for folder in _VULKAN_DRIVERS for path in (root / folder).glob("*.json")]
    return _hashed([*_versions(_library_folder().glob("*ggml*")), *kernel, *_versions(manifests)])


def _library_folder() -> Path:
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent / "lib" if spec and spec.origin else Path("/nonexistent")


def _versions(files: Iterable[Path]) -> list[str]:
    """Of a link that a removed driver has left the name alone."""
    return [" ".join([path.name, *map(str, stamp_of(path) or ())]) for path in sorted(files)]


def _hashed(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _cpu(root: Path) -> str:
    try:
        lines = (root / "proc/cpuinfo").read_text().split("\n\n")[0].split("\n")
    except OSError:
        import platform

        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags")))

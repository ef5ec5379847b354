"""Knows our own folder of llama-cpp-python wheels: a wheel's key, its build, its progress. Knows nothing of .venv.

pip's own wheel cache knows nothing of CMAKE_ARGS or of the processor, so it is never used for this package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from backend import Choice, Facts, InstallError, dotted

Say = Callable[[str], None]

GIB = 1024**3
BUILD_BYTES = 2 * GIB
USER_VARIABLES = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")
PLAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Recipe:
    """Everything a build depends on. `trim` is the path of trim.cmake."""

    version: str
    choice: Choice
    facts: Facts
    trim: Path
    cache: Path

    @property
    def folder(self) -> Path:
        return self.cache / "wheels"


# --- deciding


def cache_folder(environ: Mapping[str, str], system: str, home: Path) -> Path:
    """Where tokencli's own builds lie. Windows and macOS: not tested."""
    if system == "Windows":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData/Local") / "tokencli"
    if system == "Darwin":
        return home / "Library/Caches/tokencli"
    xdg = environ.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if xdg.startswith("/") else home / ".cache") / "tokencli"


def wheel_key(recipe: Recipe, trim_text: str, environ: Mapping[str, str]) -> str:
    """`0.3.36-vulkan-0123456789ab`: two builds with the same key are the same build, wherever the clone lies."""
    places = {str(recipe.trim): "<trim>", str(recipe.cache): "<cache>"}
    facts = recipe.facts
    ingredients = [
        *(replaced(argument, places) for argument in cmake_args(recipe)),
        *recipe.choice.flags,
        *(environ.get(name, "") for name in USER_VARIABLES),
        facts.compiler_line,
        dotted(facts.nvcc_release) if recipe.choice.backend == "cuda" else "",
        facts.cpu_flags,
        facts.machine,
        trim_text,
    ]
    digest = hashlib.sha256("\n".join(ingredients).encode()).hexdigest()
    return f"{recipe.version}-{recipe.choice.backend}-{digest[:12]}"


def cmake_args(recipe: Recipe) -> tuple[str, ...]:
    return (*recipe.choice.cmake_args, f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={recipe.trim}")


def replaced(text: str, places: Mapping[str, str]) -> str:
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def build_environment(recipe: Recipe, environ: Mapping[str, str], temporary: Path) -> dict[str, str]:
    """The user's own CMAKE_ARGS and flags stand last, so that they win."""
    flags = " ".join(recipe.choice.flags)
    ours = {"CMAKE_ARGS": shlex.join(cmake_args(recipe)), "CFLAGS": flags, "CXXFLAGS": flags}
    joined = {name: f"{ours[name]} {environ.get(name, '')}".strip() for name in USER_VARIABLES}
    return {**environ, **{name: value for name, value in joined.items() if value}, "TMPDIR": str(temporary)}


def parse_progress(line: str) -> float | None:
    """How much of the build is done, from ninja's `[123/407]`, or make's `[ 30%]`. Small inner builds do not count."""
    if found := re.match(r"\s*\[(\d+)/(\d+)\]", line):
        done, steps = int(found[1]), int(found[2])
        return done / steps if steps >= 20 else None
    if found := re.match(r"\s*\[\s*(\d+)%\]", line):
        return int(found[1]) / 100
    return None


def progress_text(fraction: float, seconds: float, building_seconds: float) -> str:
    """`seconds` since the start, `building_seconds` since the compiler began; the rest is a plain proportion."""
    if fraction <= 0:
        return f"building llama.cpp: preparing, {clock(seconds)} so far"
    left = f", about {clock(building_seconds * (1 - fraction) / fraction)} left" if 0.03 <= fraction < 1 else ""
    return f"building llama.cpp: {fraction:4.0%}, {clock(seconds)} so far{left}"


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def last_error(log: str) -> str:
    """The last line that names a cause, without what pip wraps around it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrappers = (
        r"Failed (building|to build)|with status|exited|-generation-failed|originates|exit (status|code)|CMake build failed"
    )
    causes = [line for line in lines if re.search(r"(?i)\berror\b|no space left|killed", line)]
    inner = [line for line in causes if not re.search(wrappers, line)]
    cause = next(iter(inner[-1:] or causes[-1:] or lines[-1:]), "no output")
    cause = re.sub(r"\S*/vendor/", "", cause)  # where pip unpacked it
    offline = re.search(r"Retrying \(|Max retries", log) and re.search(r"distribution|connection|retries", cause)
    return cause[:300] + (" (the network could not be reached)" if offline else "")


def disk_message(folder: Path, free_bytes: int, needed_bytes: int) -> str:
    """Empty where there is room enough."""
    if free_bytes >= needed_bytes:
        return ""
    return (
        f"building needs about {needed_bytes / GIB:.0f} GiB free in {folder}, there are {free_bytes / GIB:.1f}; "
        "make room, or set XDG_CACHE_HOME to a folder on another disk"
    )


# --- acting


def ensure_wheel(recipe: Recipe, python: Path, environ: Mapping[str, str], say: Say) -> tuple[str, Path]:
    """The key and the path of a wheel for this recipe, built now where there is none yet."""
    key = wheel_key(recipe, recipe.trim.read_text(), environ)
    if wheel := find_wheel(recipe.folder / key):
        say(f"using the wheel built before for {recipe.choice.sentence}")
        return key, wheel
    recipe.folder.mkdir(parents=True, exist_ok=True)
    with locked(recipe.folder / f"{key}.lock", say):
        if not find_wheel(recipe.folder / key):
            say(f"building for {recipe.choice.sentence}")
            build(recipe, key, python, environ, say)
    wheel = find_wheel(recipe.folder / key)
    if wheel is None:
        raise InstallError(f"the build ended without a wheel in {recipe.folder / key}")
    return key, wheel


def find_wheel(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.whl"))), None)


def build(recipe: Recipe, key: str, python: Path, environ: Mapping[str, str], say: Say) -> None:
    """Builds beside and renames, so that a folder with a key's name always holds a whole wheel."""
    message = disk_message(recipe.folder, shutil.disk_usage(recipe.folder).free, BUILD_BYTES)
    if message:
        raise InstallError(message)
    log = recipe.cache / "logs" / f"build-{key}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    work = recipe.folder / f".{key}"
    shutil.rmtree(work, ignore_errors=True)
    (work / "tmp").mkdir(parents=True)
    command = [str(python), "-m", "pip", "wheel", "--no-cache-dir", "--no-deps", "--no-binary", "llama-cpp-python", "-v"]
    command += ["-w", str(work / "wheel"), f"llama-cpp-python=={recipe.version}"]
    try:
        if run_build(command, build_environment(recipe, environ, work / "tmp"), log, say):
            raise InstallError(f"the build failed: {last_error(log.read_text(errors='replace'))} (log: {log})")
        (work / "wheel").rename(recipe.folder / key)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_build(command: list[str], environ: Mapping[str, str], log: Path, say: Say) -> int:
    """Runs the build with its output in a log and its progress on stderr; returns its exit status."""
    progress = Progress(say, time.monotonic, sys.stderr if sys.stderr.isatty() else None)
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environ
        ) as process,
    ):
        assert process.stdout is not None
        for line in lines_or_ticks(process.stdout):
            file.write(line)
            progress.see(line)
    progress.end(finished=process.returncode == 0)
    return process.returncode


def lines_or_ticks(stream: IO[str]) -> Iterator[str]:
    """The lines of a stream, and an empty string for every second without one."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed under us when the build is interrupted
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            line = ""
        if line is None:
            return
        yield line


class Progress:
    """One line that is rewritten on a terminal; elsewhere a plain line every 30 s."""

    def __init__(self, say: Say, now: Callable[[], float], terminal: IO[str] | None = None) -> None:
        self.say, self.now, self.terminal = say, now, terminal
        self.started = self.shown = now()
        self.began: float | None = None
        self.fraction = 0.0

    def see(self, line: str) -> None:
        fraction = parse_progress(line)
        if fraction is not None:
            self.began = self.began if self.began is not None else self.now()
            self.fraction = max(self.fraction, fraction)
        if self.now() - self.shown >= (1.0 if self.terminal else PLAIN_SECONDS):
            self.show()

    def show(self) -> None:
        self.shown = self.now()
        building = self.shown - self.began if self.began is not None else 0.0
        text = progress_text(self.fraction, self.shown - self.started, building)
        if self.terminal:
            print(f"\r\x1b[K{text}", end="", file=self.terminal, flush=True)
        else:
            self.say(text)

    def end(self, finished: bool) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", file=self.terminal, flush=True)
        if finished:
            self.say(f"the build took {clock(self.now() - self.started)}")


@contextlib.contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Holds a file's lock; the system frees it when this process ends, however it ends. Windows: no lock."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another installation to finish")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

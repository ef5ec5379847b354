"""Builds llama.cpp's own llama-speculative-simple, to compare with, from the very sources that our llama-cpp-python is made of.

For the CPU, outside the tree, with the compiler flags of our own build. Takes minutes; never needed to run or to test tokencli.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import platformdirs

sys.path.insert(0, str(Path(__file__).parent))

from backend import InstallError, ask, choose_backend, look
from install import read_pins, say
from llama_wheel import disk_message, last_error, locked, run_build

ROOT = Path(__file__).resolve().parents[1]
TOOL = "llama-speculative-simple"
NEEDED_BYTES = 1024**3
JOBS = "2"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",  # one file, which can be moved
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_COMMON=ON",
    "-DLLAMA_BUILD_EXAMPLES=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def speculative_simple() -> Path:
    """The path of the program, built now where it is not there yet. Raises InstallError."""
    version = read_pins((ROOT / "pyproject.toml").read_text("utf-8")).llama
    folder = platformdirs.user_cache_path("tokencli") / "llama-tools" / version
    if not (folder / TOOL).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", say):
            if not (folder / TOOL).exists():
                _build(version, folder)
    return folder / TOOL


def _build(version: str, folder: Path) -> None:
    """Builds in a folder of its own and moves the program to its place at the end: what stands there is whole."""
    if problem := disk_message(folder, shutil.disk_usage(folder).free, NEEDED_BYTES):
        raise InstallError(problem)
    if not shutil.which("cmake"):
        raise InstallError(f"cmake, which builds {TOOL}, is not installed")
    work, log = folder / "work", folder / "build.log"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        sources = _sources(version, work, log)
        say(f"building {TOOL} {version} for the CPU (log: {log})")
        _run([*_gently(), "cmake", "-S", str(sources), "-B", str(work / "build"), *_generator(), *OPTIONS], log)
        _run([*_gently(), "cmake", "--build", str(work / "build"), "--target", TOOL, "-j", JOBS], log)
        (work / "build/bin" / TOOL).replace(folder / TOOL)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sources(version: str, work: Path, log: Path) -> Path:
    """The llama.cpp inside llama-cpp-python's source package, which pip downloads (70 MB)."""
    say(f"downloading the sources of llama-cpp-python {version}")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", str(work)]
    _run([*pip, f"llama-cpp-python=={version}"], log)
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(work, filter="data")
    return work / archive.name.removesuffix(".tar.gz") / "vendor/llama.cpp"


def _run(command: list[str], log: Path) -> None:
    step = log.with_suffix(".step")
    failed = run_build(command, _environment(), step, say)
    text = step.read_text(errors="replace")
    step.unlink()
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n{text}\n")
    if failed:
        raise InstallError(f"{TOOL} could not be built: {last_error(text)} (log: {log})")


def _environment() -> dict[str, str]:
    """The compiler flags of our own build (FACTS: AMX and GCC 12), so that both sides compute alike."""
    flags = " ".join(choose_backend(ask(look(os.environ), os.environ), "cpu").flags)
    return {**os.environ, **{name: f"{flags} {os.environ.get(name, '')}".strip() for name in ("CFLAGS", "CXXFLAGS")}}


def _generator() -> list[str]:
    return ["-G", "Ninja"] if shutil.which("ninja") else []


def _gently() -> list[str]:
    return ["nice", "-n", "19"] if shutil.which("nice") else []


if __name__ == "__main__":
    try:
        print(speculative_simple())
    except (InstallError, subprocess.SubprocessError) as error:
        say(str(error))
        sys.exit(1)

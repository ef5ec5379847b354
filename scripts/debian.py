"""Knows Debian's packages: which are missing, how to install them, how to borrow newer Vulkan headers without root.

Knows nothing of builds; nothing here touches the system unless `install_packages` is called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from backend import Facts, read_text

SUITE = "trixie"  # Debian 13, whose Vulkan headers are new enough for llama.cpp
HEADER_PACKAGES = ("libvulkan-dev", "spirv-headers")


# --- deciding


def needed_packages(facts: Facts) -> list[str]:
    """Nothing can be built without these."""
    venv = f"python3.{sys.version_info.minor}-venv"
    return ["build-essential"] * (not facts.compiler) + [venv] * (not facts.venv_module)


def vulkan_packages(facts: Facts, override: str = "", testing: bool = False) -> list[str]:
    """What a Vulkan build lacks, and for tests its software device. Headers that are too old are borrowed instead."""
    if override in ("cpu", "cuda") or facts.system != "Linux":
        return []
    headers = facts.vulkan_headers == "none" or not facts.vulkan_library
    return [
        *(["glslc"] * (not facts.glslc)),
        *(["libvulkan-dev"] * headers),
        *(["spirv-headers"] * (facts.vulkan_headers != "old" and not facts.spirv_headers)),
        *(["libvulkan1", "mesa-vulkan-drivers"] * (testing and not facts.software_vulkan)),
    ]


def suite_source(name: str, text: str, codename: str) -> tuple[str, str] | None:
    """The machine's own Debian entry turned into one for SUITE: (file name, text), so that no host is named here.

    `name` tells the format: .sources (stanzas) or .list (one line each). None where no entry is for `codename`.
    """
    suites = {codename, "stable", "testing", "unstable", "sid"} - {""}
    stanzas = name.endswith(".sources")
    entries = stanza_entries(text, suites) if stanzas else line_entries(text, suites)
    entry = next(entries, None)
    return (f"headers.{'sources' if stanzas else 'list'}", entry) if entry else None


def stanza_entries(text: str, suites: set[str]) -> Iterator[str]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if line.strip() and not line.startswith("#")]
        fields = {key.strip().lower(): value.split() for key, _, value in (line.partition(":") for line in lines)}
        enabled = fields.get("enabled", ["yes"]) != ["no"]
        fits = "deb" in fields.get("types", []) and "main" in fields.get("components", [])
        if enabled and fits and suites & set(fields.get("suites", [])):
            changed = {"types": "Types: deb", "suites": f"Suites: {SUITE}", "components": "Components: main"}
            yield "\n".join(changed.get(line.partition(":")[0].lower(), line) for line in lines) + "\n"


def line_entries(text: str, suites: set[str]) -> Iterator[str]:
    for line in text.splitlines():
        found = re.match(r"\s*deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if found and found[3] in suites and "main" in found[4].split() and not found[2].startswith("cdrom:"):
            yield f"deb {found[1] or ''}{found[2]} {SUITE} main\n"


# --- acting


def install_packages(packages: Sequence[str], log: Path, environ: Mapping[str, str]) -> bool:
    """apt-get install, with a fresh package list where the one at hand does not do. True where it worked."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    apt = [*([] if root else ["sudo"]), "apt-get"]
    quiet = {**environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    if logged(install, log, env=quiet):
        return True
    return logged([*apt, "update"], log, env=quiet) and logged(install, log, env=quiet)


def fetch_headers(target: Path, log: Path) -> str:
    """Unpacks SUITE's Vulkan and SPIR-V headers into `target`/usr; returns what went wrong, or nothing.

    Works without root and leaves the system's package lists alone.
    """
    source = machine_source()
    if source is None:
        return "this machine's package lists have no entry for Debian's main packages"
    work = target.with_name(f".{target.name}-{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    try:
        return download_and_unpack(work, source, log) or put_in_place(work / "root", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def machine_source() -> tuple[str, str] | None:
    codename = re.search(r"^VERSION_CODENAME=(\w+)", read_text(Path("/etc/os-release")), re.MULTILINE)
    apt = Path("/etc/apt")
    parts = sorted(apt.glob("sources.list.d/*"), key=lambda path: (path.name != "debian.sources", path.name))
    for path in (apt / "sources.list", *parts):
        if path.suffix in (".list", ".sources"):
            source = suite_source(path.name, read_text(path), codename[1] if codename else "")
            if source is not None:
                return source
    return None


def download_and_unpack(work: Path, source: tuple[str, str], log: Path) -> str:
    for folder in ("parts", "lists/partial", "cache/archives/partial", "root"):
        (work / folder).mkdir(parents=True)
    name, text = source
    (work / "parts" / name).write_text(text)
    apt = apt_command(work)
    if not (logged([*apt, "update"], log) and logged([*apt, "download", *HEADER_PACKAGES], log, cwd=work)):
        return f"newer Vulkan headers could not be fetched (log: {log})"
    unpacked = [logged(["dpkg", "-x", str(package), str(work / "root")], log) for package in sorted(work.glob("*.deb"))]
    if not (unpacked and all(unpacked)):
        return f"the fetched Vulkan headers could not be unpacked (log: {log})"
    return ""


def apt_command(work: Path) -> list[str]:
    """apt-get that reads one source list of ours and writes nothing outside `work`."""
    options = {
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": work / "parts",
        "APT::Sandbox::User": "root",  # as root, apt would drop to a user that cannot write in our folder
        "Acquire::Retries": 1,
    }
    return ["apt-get", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]


def put_in_place(made: Path, target: Path) -> str:
    """Renames a finished folder to its name, unless another process was faster."""
    try:
        made.rename(target)
    except OSError as error:
        return "" if target.exists() else str(error)
    return ""


def logged(
    command: Sequence[str], log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, seconds: int = 900
) -> bool:
    """Runs a program with its output appended to a log; True where it worked."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        print("$", *command, file=file, flush=True)
        try:
            return not subprocess.call(command, stdout=file, stderr=file, cwd=cwd, env=env, timeout=seconds)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(error, file=file)
            return False

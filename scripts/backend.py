"""Knows what this computer can build llama.cpp for, and chooses. Knows nothing of pip, .venv or apt.

`look` and `ask` read the facts; everything below them decides from the facts alone.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

BACKENDS = ("cpu", "vulkan", "cuda")
COMMON_ARGS = ("-DLLAVA_BUILD=OFF", "-DLLAMA_OPENSSL=OFF")
NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
WSL_LIBRARIES = "/usr/lib/wsl/lib"

Version = tuple[int, int]


class InstallError(Exception):
    """What stands in the way, in one line that says what to do. `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Facts:
    """What was found. The first half costs nothing to read; the rest was asked of tools (empty: not known)."""

    system: str
    machine: str
    cpu_flags: str
    apt: bool
    debian: bool
    venv_module: bool
    compiler: str
    nvcc: str
    nvidia_driver: bool
    glslc: bool
    vulkan_library: bool
    vulkan_headers: str  # "none", "old" or "new" (knows VK_EXT_layer_settings)
    spirv_headers: bool
    software_vulkan: bool
    render_node: bool

    compiler_line: str = ""
    nvcc_release: Version | None = None
    nvcc_architectures: tuple[int, ...] = ()
    driver_cuda: Version | None = None
    capabilities: tuple[Version, ...] = ()
    fetched_headers: str = ""  # a folder with its own usr/, see debian.py


@dataclass(frozen=True)
class Choice:
    backend: str
    reason: str
    cmake_args: tuple[str, ...]
    flags: tuple[str, ...] = ()  # for the C and the C++ compiler

    @property
    def sentence(self) -> str:
        name = {"cpu": "the CPU", "vulkan": "Vulkan", "cuda": "CUDA", "metal": "Metal"}[self.backend]
        amx = "; without AMX, which GCC before 13 compiles wrongly" if self.flags else ""
        return f"{name} ({self.reason}{amx})"


# --- reading


def look(environ: Mapping[str, str]) -> Facts:
    """The facts that need no other program: they are read at every start, so they take milliseconds."""
    prefixes = [Path(p) for p in (environ.get("VULKAN_SDK"), "/usr", "/usr/local") if p]
    machine = platform.machine()
    path = environ.get("PATH", "")
    os_release = read_text(Path("/etc/os-release"))
    return Facts(
        system=platform.system(),
        machine=machine,
        cpu_flags=parse_cpu_flags(first_kilobytes(Path("/proc/cpuinfo"))),
        apt=bool(shutil.which("apt-get", path=path) and shutil.which("dpkg", path=path)),
        debian=re.search(r"^ID=\"?debian\b", os_release, re.MULTILINE) is not None,
        venv_module=all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        compiler=first_program((environ.get("CXX", ""), "c++", "g++", "clang++"), path),
        nvcc=first_program(("nvcc", "/usr/local/cuda/bin/nvcc"), path),
        nvidia_driver=has_nvidia_driver(),
        glslc=shutil.which("glslc", path=path) is not None,
        vulkan_library=any_exists(prefixes, ("lib", "lib64", f"lib/{machine}-linux-gnu"), "libvulkan.so"),
        vulkan_headers=vulkan_headers(prefixes),
        spirv_headers=any_exists(prefixes, ("share", "lib", "lib64"), "cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake"),
        software_vulkan=any(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")),
        render_node=any(Path("/dev/dri").glob("renderD*")),
    )


def ask(facts: Facts, environ: Mapping[str, str]) -> Facts:
    """Adds what only other programs can tell: the compiler's version and what the NVIDIA tools say."""
    facts = replace(
        facts,
        compiler_line=output([facts.compiler, "--version"]).partition("\n")[0],
        nvcc_release=parse_version(r"release (\d+)\.(\d+)", output([facts.nvcc, "--version"])),
        nvcc_architectures=parse_architectures(output([facts.nvcc, "--list-gpu-arch"])),
    )
    if not facts.nvidia_driver:
        return facts
    smi = first_program(("nvidia-smi", f"{WSL_LIBRARIES}/nvidia-smi"), environ.get("PATH", ""))
    return replace(
        facts,
        driver_cuda=parse_version(r"CUDA (?:\w+ )?Version: (\d+)\.(\d+)", output([smi])),
        capabilities=parse_capabilities(output([smi, "--query-gpu=compute_cap", "--format=csv,noheader"])),
    )


def output(command: Sequence[str], seconds: float = 20.0) -> str:
    """What a program prints; nothing where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=seconds
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def first_kilobytes(path: Path) -> str:
    """Enough of /proc/cpuinfo for its first processor; the whole file is long to make on large machines."""
    try:
        with path.open(errors="replace") as file:
            return file.read(16384)
    except OSError:
        return ""


def first_program(names: Sequence[str], path: str) -> str:
    return next((found for name in names if name and (found := shutil.which(name, path=path))), "")


def any_exists(prefixes: Sequence[Path], folders: Sequence[str], name: str) -> bool:
    return any((prefix / folder / name).exists() for prefix in prefixes for folder in folders)


def has_nvidia_driver() -> bool:
    windows_linux = Path("/dev/dxg").exists() and Path(WSL_LIBRARIES, "libcuda.so.1").exists()
    return windows_linux or Path("/proc/driver/nvidia/version").exists()


def vulkan_headers(prefixes: Sequence[Path]) -> str:
    texts = [read_text(prefix / "include/vulkan/vulkan_core.h") for prefix in prefixes]
    first = next((text for text in texts if text), "")
    if not first:
        return "none"
    return "new" if "VK_EXT_layer_settings" in first else "old"


# --- parsing


def parse_cpu_flags(cpuinfo: str) -> str:
    """The first processor's flags, sorted (x86 calls them flags, ARM Features)."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return " ".join(sorted(found[1].split())) if found else ""


def parse_version(pattern: str, text: str) -> Version | None:
    found = re.search(pattern, text)
    return (int(found[1]), int(found[2])) if found else None


def parse_architectures(text: str) -> tuple[int, ...]:
    """`compute_75` of nvcc --list-gpu-arch is 75."""
    return tuple(sorted(int(number) for number in re.findall(r"compute_(\d+)", text)))


def parse_capabilities(text: str) -> tuple[Version, ...]:
    """One `8.9` per card; nvidia-smi prints `[N/A]` or an error text where it does not know."""
    return tuple(sorted({(int(a), int(b)) for a, b in re.findall(r"^\s*(\d+)\.(\d+)\s*$", text, re.MULTILINE)}))


def gcc_major(compiler_line: str) -> int | None:
    """`c++ (Debian 12.2.0-14) 12.2.0` is GCC 12; None for any other compiler."""
    if "clang" in compiler_line.lower():
        return None
    found = re.search(r"\)\s+(\d+)\.\d+", compiler_line)
    return int(found[1]) if found else None


# --- deciding


def choose_backend(facts: Facts, override: str = "") -> Choice:
    """What to build for and why. `override` is TOKENCLI_BUILD; raises InstallError where it cannot be had."""
    check_override(override)
    no_cuda, no_vulkan = why_not_cuda(facts), why_not_vulkan(facts)
    if override:
        choice = forced(facts, override, no_vulkan)
    elif facts.system == "Darwin":
        choice = Choice("metal", "llama.cpp's own default on a Mac; not tested here", ())
    elif not no_cuda:
        choice = cuda(facts, f"nvcc {dotted(facts.nvcc_release)} and a working NVIDIA driver found")
    elif not no_vulkan:
        choice = vulkan(facts, f"; not CUDA: {no_cuda}" if facts.nvcc or facts.nvidia_driver else "")
    else:
        choice = Choice("cpu", f"not CUDA: {no_cuda}; not Vulkan: {no_vulkan}", ())
    return replace(choice, cmake_args=COMMON_ARGS + choice.cmake_args, flags=amx_flags(facts))


def check_override(override: str) -> None:
    if override not in ("", *BACKENDS):
        raise InstallError(f"TOKENCLI_BUILD={override}: it can be {', '.join(BACKENDS)}, or not be set", code=2)


def forced(facts: Facts, override: str, no_vulkan: str) -> Choice:
    reason = f"TOKENCLI_BUILD={override}"
    if override == "vulkan":
        if no_vulkan:
            raise InstallError(f"{reason} cannot be done: {no_vulkan}")
        return vulkan(facts, f"; {reason}")
    if override == "cuda":
        if not facts.nvcc:
            raise InstallError(f"{reason} cannot be done: no CUDA compiler (nvcc) was found")
        if facts.capabilities and not card_architectures(facts):
            raise InstallError(f"{reason} cannot be done: {no_code_for(facts)}")
        return cuda(facts, reason)
    return Choice("cpu", reason, ())


def cuda(facts: Facts, reason: str) -> Choice:
    """For this machine's cards; where no card can be asked (a forced build), for llama.cpp's usual list."""
    architectures = ";".join(str(number) for number in card_architectures(facts))
    wanted = f"; for compute capability {architectures}" if architectures else "; no card found, for all kinds"
    args = ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={facts.nvcc}"]
    if architectures:
        args.append(f"-DCMAKE_CUDA_ARCHITECTURES={architectures}")
    return Choice("cuda", reason + wanted, tuple(args))


def vulkan(facts: Facts, more: str) -> Choice:
    args = ["-DGGML_VULKAN=ON"]
    if facts.fetched_headers:
        args.append(f"-DVulkan_INCLUDE_DIR={facts.fetched_headers}/usr/include")
        args.append(f"-DSPIRV-Headers_DIR={facts.fetched_headers}/usr/share/cmake/SPIRV-Headers")
    headers = "newer Vulkan headers fetched" if facts.fetched_headers else "Vulkan headers found"
    return Choice("vulkan", f"glslc and {headers}; the same build serves the CPU{more}", tuple(args))


def why_not_cuda(facts: Facts) -> str:
    """Empty where CUDA can be built and will run."""
    if not facts.nvidia_driver:
        return "nvcc is here, but no NVIDIA driver runs" if facts.nvcc else "no NVIDIA driver and no nvcc"
    if not facts.nvcc:
        return "an NVIDIA driver runs, but its compiler, nvcc, is not installed"
    if not facts.capabilities:
        return "nvidia-smi does not tell the card's compute capability"
    if facts.driver_cuda and facts.nvcc_release and facts.driver_cuda[0] < facts.nvcc_release[0]:
        return f"the driver knows CUDA {dotted(facts.driver_cuda)}, nvcc is of CUDA {dotted(facts.nvcc_release)}"
    return "" if card_architectures(facts) else no_code_for(facts)


def why_not_vulkan(facts: Facts) -> str:
    """Empty where the Vulkan backend can be built. `fetched_headers` replaces the system's headers."""
    lacking = ["glslc"] * (not facts.glslc) + ["libvulkan.so"] * (not facts.vulkan_library)
    if not facts.fetched_headers:
        if facts.vulkan_headers == "old":
            lacking.append("Vulkan headers that know VK_EXT_layer_settings")
        elif facts.vulkan_headers == "none":
            lacking.append("Vulkan headers")
        lacking += ["SPIRV-Headers"] * (not facts.spirv_headers)
    return f"missing {', '.join(lacking)}" if lacking else ""


def wants_headers(facts: Facts, override: str) -> bool:
    """True where nothing but newer headers stands between this machine and a Vulkan build."""
    if not (facts.debian and facts.apt) or override not in ("", "vulkan") or not why_not_vulkan(facts):
        return False
    return not why_not_vulkan(replace(facts, fetched_headers="?")) and (bool(override) or bool(why_not_cuda(facts)))


def card_architectures(facts: Facts) -> list[int]:
    """What to compile for: per card, the newest of nvcc's architectures that it runs (same major number)."""
    cards = [10 * major + minor for major, minor in facts.capabilities]
    fitting = [[known for known in facts.nvcc_architectures if known // 10 == card // 10 and known <= card] for card in cards]
    return sorted({max(known) for known in fitting if known})


def no_code_for(facts: Facts) -> str:
    cards = ", ".join(dotted(capability) for capability in facts.capabilities)
    return f"CUDA {dotted(facts.nvcc_release)} makes no code for this card (compute capability {cards})"


def amx_flags(facts: Facts) -> tuple[str, ...]:
    """GCC before 13 drops stores of the AMX tile configuration: the first decode of a quantised model crashes."""
    gcc = gcc_major(facts.compiler_line)
    return NO_AMX if "amx_tile" in facts.cpu_flags.split() and gcc is not None and gcc < 13 else ()


def dotted(version: Version | None) -> str:
    return f"{version[0]}.{version[1]}" if version else "of unknown version"

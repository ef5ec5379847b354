"""The wheel that users install: built from the tree, put into an environment outside of it, and run there."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny_models

Installed = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_carries_the_catalogue_the_profiles_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tokencli/data/models.toml" in names
    assert {name for name in names if name.startswith("tokencli/data/profiles/") and name.endswith(".toml")} == {
        f"tokencli/data/profiles/{name}.toml" for name in ("amd-780m-vulkan", "cpu", "cuda-6gb", "speeds/priors")
    }
    assert {"tokencli/data/texts/winter-animals.txt", "tokencli/data/texts/README.md"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Runs the command in a new environment with the wheel alone; the packages it needs are seen through a path file."""
    folder = tmp_path_factory.mktemp("installed")
    environment = folder / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    ).stdout.strip()
    zipfile.ZipFile(wheel).extractall(site)
    (Path(site) / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import sys, tokencli.__main__; print(tokencli.__file__, file=sys.stderr); tokencli.__main__.main()"
    folders = {f"XDG_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [python, "-c", code, *arguments],
            cwd=folder,
            env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **folders},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert result.stderr.startswith(site)
        return result

    return run


def test_the_installed_wheel_answers_outside_the_source_tree(installed: Installed) -> None:
    assert installed("run", "smollm2-135m", "Why is the sky blue?", "--max-tokens", "5").stdout.strip()


def test_the_installed_wheel_reads_the_text_that_came_with_it(installed: Installed, tmp_path: Path) -> None:
    model = str(tiny_models.write(tmp_path / "m.gguf", weight_type="Q8_0"))
    found = json.loads(installed("bench", model, "--quality", "--threads", "1", "--json").stdout)
    assert found["text"] == "winter-animals.txt"
    assert found["chunks"] >= 8

"""The wheel that users install: built from the tree, put into an environment outside of it, and run there."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

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
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_the_installed_wheel_answers_outside_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    """A new environment with the wheel alone; the packages it needs are seen through a path file."""
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    ).stdout.strip()
    zipfile.ZipFile(wheel).extractall(site)
    (Path(site) / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import sys, tokencli.__main__; print(tokencli.__file__, file=sys.stderr); tokencli.__main__.main()"
    command = [python, "-c", code, "run", "smollm2-135m", "Why is the sky blue?", "--max-tokens", "5"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert result.stderr.startswith(site)

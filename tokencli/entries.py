"""Tables of a TOML file that people may read and edit: what `tune` and `bench` remember. Knows no entry's meaning."""

import contextlib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read_entries(file: Path, name: str, parse: Callable[[Mapping[str, Any]], T], what: str) -> tuple[list[T], list[str]]:
    """What can be used of the tables called `name`, and a line for what cannot: "`what` are not used: ..."."""
    try:
        found = tomllib.loads(file.read_text("utf-8")).get(name, [])
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as error:
        return [], [f"{what} are not used: {file} cannot be read: {error}"]
    entries, faults = [], []
    for number, values in enumerate(found if isinstance(found, list) else [], 1):
        try:
            entries.append(parse(values))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            faults.append(f"{what} are not used: entry {number} of {file}: {error}")
    return entries, faults


def write_entries(file: Path, header: str, name: str, tables: Iterable[Mapping[str, Any]]) -> None:
    """Written whole and then renamed. Raises OSError."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(header))
    array = tomlkit.aot()
    for table in tables:
        array.append(tomlkit.item(dict(table)))
    document[name] = array
    part = file.with_suffix(f".{os.getpid()}.part")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_text(tomlkit.dumps(document), "utf-8")
        part.replace(file)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def keep_beside(file: Path, faults: Iterable[str]) -> None:
    """Before a file that could not be read is written anew. Raises OSError."""
    if any(faults) and file.exists():
        file.replace(file.with_suffix(".toml.old"))

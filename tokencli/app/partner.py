"""Which draft the catalogue names for a model, and whether it is on this disk. Asks nobody. Prints nothing."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from tokencli.app.find import here
from tokencli.errors import TokencliError
from tokencli.listing import File, Variant
from tokencli.plan.model_info import model_info
from tokencli.plan.offers import scaled
from tokencli.plan.partner import Partner
from tokencli.plan.sizes import ModelFile
from tokencli.world import gguf_file

if TYPE_CHECKING:
    from tokencli.app.world import World
    from tokencli.world.catalogue import Entry


def partner_of(target: ModelFile, world: "World") -> Partner | None:
    """The catalogue's draft for the model, under its alias or from its repository. None where it names none, or none that fits
    the model, and for models whose state a draft would multiply.
    """
    name = _named(target, world)
    entry = world.catalogue().get(name) if name else None
    if name is None or entry is None or target.info.is_recurrent:
        return None
    path = _path(name, world)
    try:
        model = _of_file(name, path, target) if path else _of_size(entry, target)
    except (TokencliError, OSError):
        return None
    return Partner(name, model, path is not None) if model and model.info.weight_bytes < target.info.weight_bytes else None


def _named(target: ModelFile, world: "World") -> str | None:
    known = world.catalogue()
    entry = known.get(target.model.name)
    if entry is None and target.hub:
        entry = next((each for each in known.values() if each.repo == target.hub.repo and each.draft), None)
    return entry.draft if entry else None


def _path(name: str, world: "World") -> Path | None:
    with contextlib.suppress(TokencliError, OSError):
        found = here(name, world)
        return found.path if found else None
    return None


def _of_file(name: str, path: Path, target: ModelFile) -> ModelFile | None:
    """By its header; None where it has another vocabulary."""
    if gguf_file.vocabulary_difference(Path(target.model.file), path):
        return None
    return ModelFile.of(model_info(gguf_file.read_header(path)), str(path), name)


def _of_size(entry: "Entry", target: ModelFile) -> ModelFile | None:
    return scaled(target, Variant(entry.quant, (File(entry.alias, entry.bytes),))) if entry.bytes else None

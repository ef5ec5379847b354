"""What a model's quality is compared with: what the user names, else itself with a whole KV cache, else the best quant here."""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokencli.app.find import hub_name_of
from tokencli.app.world import World
from tokencli.errors import ModelUnavailable
from tokencli.listing import HubModel, alike, variants
from tokencli.plan.choose import Wishes
from tokencli.plan.loss import loss
from tokencli.plan.model_info import model_info
from tokencli.plan.sizes import ModelFile
from tokencli.world import gguf_file

_MOST_FILES = 32  # that a folder is looked through for


@dataclass(frozen=True, slots=True)
class Reference:
    """A model's name and the wishes to load it with, and `why` it is this one."""

    name: str
    wishes: Wishes
    why: str


def reference_of(model: str, against: str | None, wishes: Wishes, target: ModelFile, world: World) -> Reference | None:
    """None where nothing is named and nothing better is here. The reference's KV cache is whole in any case."""
    whole = dataclasses.replace(wishes, kv_type="f16")
    if against is not None:
        name, quant = _named(model, against, target, world)
        return Reference(name, dataclasses.replace(whole, quant=quant), "as asked for")
    if wishes.kv_type != "f16":
        return Reference(model, whole, "the same file with a KV cache of f16")
    if best := _best_here(target, world):
        return Reference(str(best), dataclasses.replace(whole, quant=None), "the best quant of this model that is here")
    return None


def _named(model: str, against: str, target: ModelFile, world: World) -> tuple[str, str | None]:
    """A model and its quant: one with a name of its own, else a quant of the model's repository or of its file's folder."""
    known = world.catalogue()
    if against in known or hub_name_of(against, known) or against.endswith(".gguf") or Path(against).exists():
        return against, None
    if target.hub or Path(model).is_dir():
        return model, against
    return str(Path(target.model.file).parent), against


def _best_here(target: ModelFile, world: World) -> Path | None:
    """The file that loses least, by what is published, of those of the same model that lose less."""
    others = _fetched(target.hub, world) if target.hub else _beside(target)
    better = [(loss(quant), path) for quant, path in others if loss(quant) < loss(target.quant)]
    return min(better)[1] if better else None


def _fetched(model: HubModel, world: World) -> Iterator[tuple[str, Path]]:
    """The quants of a repository's model that are in the cache, at the same commit."""
    listing = world.hub.cache.listing(model.repo, model.commit)
    offered = variants(listing.files) if listing else []
    own = next((each for each in offered if each.path == model.files[0].path), None)
    for each in alike(own, offered) if own else ():
        paths = [world.hub.cache.find(model.repo, model.commit, file) for file in each.files]
        if each.quant and all(paths) and paths[0]:
            yield each.quant, paths[0]


def _beside(target: ModelFile) -> Iterator[tuple[str, Path]]:
    """Files in the target's folder that are of the same model as far as their headers tell."""
    own = Path(target.model.file)
    kind = _kind(own)
    for path in sorted(own.parent.glob("*.gguf"))[:_MOST_FILES]:
        with contextlib.suppress(ModelUnavailable):
            if path != own and _kind(path) == kind:
                yield gguf_file.read_header(path).quant, path


def _kind(path: Path) -> tuple[object, ...]:
    """What all quants of a model have in common. Raises ModelUnavailable."""
    header = gguf_file.read_header(path)
    info = model_info(header)
    name = header.metadata.get("general.name")
    return name, info.architecture, info.layers, info.embedding_length, info.parameters, info.vocabulary

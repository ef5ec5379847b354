"""What a name stands for: an alias, a path, a folder, or a model of the hub: pinned, cached, or to be fetched. Prints nothing."""

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tokencli.errors import BadModelFile, ModelNotFound, ModelUnavailable, UsageError
from tokencli.listing import File, HubModel, Listing, Variant, alike, engine_of, variants
from tokencli.names import HOSTS, HubName, hub_name, is_repository
from tokencli.plan.quants import Choice, choose
from tokencli.world import catalogue, gguf_file
from tokencli.world.pins import is_there

if TYPE_CHECKING:
    from tokencli.app.world import World

FIRST_BYTES, MOST_BYTES = 1 << 20, 1 << 28
USABLE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Found:
    """`path`: the model's first file; where `hub` says that it is not fetched, a hollow file that has only its header.

    `offered`: the quants that may be taken in its place, where the user named none, and none is here or several are.
    `quant`: of a folder's file, as its name has it: a header tells only what most of its weights are.
    """

    path: Path
    hub: HubModel | None = None
    notes: tuple[str, ...] = ()
    offered: tuple[Variant, ...] = ()
    quant: str | None = None


def find(name: str, world: "World", quant: str | None = None, taken: Variant | None = None) -> Found:
    """What `name` stands for. Asks the hub only for what is not here. Raises ModelUnavailable, UsageError.

    `taken`: of what is offered the one that was decided for.
    """
    known = world.catalogue()
    if wanted := hub_name_of(name, known, quant):
        open_name = is_open(name, wanted, quant, world)
        if taken:
            return on_hub(dataclasses.replace(wanted, quant=None), world, taken)
        found = _here(wanted, world) or (_pinned(dataclasses.replace(wanted, quant=None), world) if open_name else None)
        if found:
            return found
        found = on_hub(wanted, world)
        return found if open_name else dataclasses.replace(found, offered=())
    path = catalogue.resolve(name, known)
    if not path.exists() and is_repository(name):
        raise ModelNotFound(f"there is no file {name}", f"for the model of the hub write hf:{name}")
    if path.is_dir():
        return Found(path / taken.path, quant=taken.quant) if taken else _in_folder(path, quant, world)
    if quant:
        raise UsageError(f"--quant chooses among the files of a repository or a folder; {name} is one file", "leave it out")
    return Found(path)


def here(name: str, world: "World") -> Found | None:
    """What `name` stands for where it is on this disk: the hub is not asked."""
    known = world.catalogue()
    if not (wanted := hub_name_of(name, known)):
        path = catalogue.resolve(name, known)
        return Found(path) if path.is_file() else None
    unnamed = dataclasses.replace(wanted, quant=None)
    return _here(wanted, world) or (_pinned(unnamed, world) if is_open(name, wanted, None, world) else None)


def is_open(name: str, wanted: HubName, quant: str | None, world: "World") -> bool:
    """Whether a name of the hub leaves the quant to us: an alias does, as it stands for its repository."""
    return not quant and (name in world.catalogue() or not wanted.quant)


def hub_name_of(name: str, known: dict[str, catalogue.Entry], quant: str | None = None) -> HubName | None:
    """The name on the hub that `name` means, None where it means something on this computer. Raises UsageError."""
    entry = known.get(name)
    mirror = urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname
    wanted = HubName(entry.repo, entry.quant) if entry and entry.repo else hub_name(name, (*HOSTS, mirror or HOSTS[0]))
    return dataclasses.replace(wanted, quant=quant) if wanted and quant else wanted


def on_hub(wanted: HubName, world: "World", taken: Variant | None = None) -> Found:
    """As the hub has it now: its headers are fetched, its weights are not."""
    listing = world.hub.listing(wanted.repo, wanted.revision)
    choice = Choice(taken) if taken else choose(listing.files, wanted.quant, str(wanted), usable_memory(world))
    model = _chosen(wanted, listing, choice, world)
    notes = (choice.note,) if choice.note else ()
    if model.fetched:
        return Found(Path(model.paths[0]), model, notes)
    offered = alike(choice.variant, variants(listing.files))
    hollow = world.hollows.of(model, lambda file: _header(file, model, world))
    return Found(hollow, model, notes, tuple(offered) if len(offered) > 1 and not taken else ())


def usable_memory(world: "World") -> int:
    """Bytes of RAM that a model may take: what a quant is chosen by until plans of all are compared."""
    return int(world.read_machine([]).ram_available_bytes * USABLE_SHARE)


def _here(wanted: HubName, world: "World") -> Found | None:
    """The files pinned under the name; of a name that was never pinned what another program has fetched."""
    return _pinned(wanted, world) if world.pins.of(str(wanted)) else cached(wanted, world)


def _pinned(wanted: HubName, world: "World") -> Found | None:
    pinned = world.pins.of(str(wanted))
    return Found(Path(pinned.paths[0]), pinned) if pinned and is_there(pinned) else None


def cached(wanted: HubName, world: "World") -> Found | None:
    """What another program has fetched, or we under another name: used in place, with no question to the hub (report A6-12)."""
    is_commit = wanted.revision and len(wanted.revision) == 40
    listing = world.hub.cache.listing(wanted.repo, wanted.revision) if is_commit or not wanted.revision else None
    if not listing:
        return None
    with contextlib.suppress(ModelUnavailable, UsageError):
        choice = choose(listing.files, wanted.quant, str(wanted), usable_memory(world))
        model = _chosen(wanted, listing, choice, world)
        notes = () if wanted.quant else (f"took {choice.variant.path}, which is in the Hugging Face cache; :QUANT takes another",)
        return Found(Path(model.paths[0]), model, notes) if model.fetched else None
    return None


def _chosen(wanted: HubName, listing: Listing, choice: Choice, world: "World") -> HubModel:
    """The model with its paths, if all its files are in the cache."""
    files = choice.variant.files
    model = HubModel(str(wanted), listing.repo, listing.commit, choice.variant.quant, files)
    here = [world.hub.cache.find(listing.repo, listing.commit, file) for file in files]
    paths = tuple(str(path) for path in here if path)
    return dataclasses.replace(model, paths=paths, verified=(None,) * len(files)) if len(paths) == len(files) else model


def _header(file: File, model: HubModel, world: "World") -> bytes:
    """The file's beginning to the end of its header: asked for in growing pieces, as nobody says how long it is."""
    data, count, name = b"", FIRST_BYTES, f"{file.path} of hf:{model.repo}"
    while count <= MOST_BYTES:
        data += world.hub.read(model.repo, model.commit, file, len(data), count)
        if gguf_file.holds_header(data, file.bytes, name):
            return data
        count *= 2
    raise BadModelFile(f"{name} has a header of more than {MOST_BYTES >> 20} MiB", "take another file of the model")


def _in_folder(folder: Path, quant: str | None, world: "World") -> Found:
    """The one model in a folder or the folders in it, the one that `quant` means, or of quants of one model the usual one, the
    others on offer. Raises UsageError for several models.
    """
    try:
        found = [path for path in sorted([*folder.glob("*"), *folder.glob("*/*")]) if path.is_file()]
        files = [File(path.relative_to(folder).as_posix(), path.stat().st_size) for path in found]
    except OSError as error:
        raise ModelNotFound(f"{folder} cannot be read: {error.strerror}", "check the path and its permissions") from None
    offered = [each for each in variants(files) if not engine_of(each.path)]
    same = quant is None and len(offered) > 1 and len(alike(offered[0], offered)) == len(offered)
    choice = choose(files, quant, str(folder), usable_memory(world) if same else None)
    notes = (choice.note,) if choice.note else ()
    return Found(folder / choice.variant.path, None, notes, tuple(offered) if same else (), choice.variant.quant)

"""The stories of `models`: what can be run here, one model in detail, fetching, freeing, and naming one. Print nothing."""

import dataclasses
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokencli.app.fetch import ask_about, fetch, verify
from tokencli.app.find import Found, cached, find, hub_name_of, is_open, on_hub, usable_memory
from tokencli.app.rough import rough_planner, this_machine
from tokencli.app.world import World, read_model
from tokencli.core import Event, Note, Plan
from tokencli.errors import BadModelFile, ModelNotFound, TokencliError, UsageError
from tokencli.listing import HubModel, parts_of, variants
from tokencli.names import HubName
from tokencli.paths import typed
from tokencli.plan.choose import Wishes
from tokencli.plan.memory import placed
from tokencli.plan.model_info import model_info
from tokencli.plan.quants import choose, size
from tokencli.plan.sizes import ModelFile
from tokencli.world import catalogue, gguf_file, pins

CONTEXTS = (4096, 8192, 16_384, 32_768, 65_536, 131_072)
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Line:
    """One model that can be run. `bytes`: None where nobody told; `fits`: None where unknown.

    `placement`, `decode_tokens_per_second`: what a plan for the machine would be (app/ranking.py). `active_share`: of its bytes
    what a token reads, where that is not all.
    """

    name: str
    source: Literal["package", "hub", "path"]
    repo: str | None = None
    quant: str | None = None
    file: str | None = None
    bytes: int | None = None
    here: bool = False
    fits: bool | None = None
    title: str | None = None
    license: str | None = None
    for_what: str | None = None
    draft: str | None = None
    decode_tokens_per_second: float | None = None
    speed_origin: str | None = None
    placement: Literal["whole", "split", "no"] | None = None
    active_share: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Weights, KV cache and state on the CPU at a context size; compute buffers come on top."""

    context: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Details:
    """One model: what its header tells, its entry in a catalogue, its memory, and whether its hash was found right."""

    model: ModelFile
    line: Line
    memory: tuple[Memory, ...]
    verified: bool | None


def listed(world: World) -> list[Line]:
    """The catalogue, then what else is on this disk: pinned under a name of the hub, or in the Hugging Face cache."""
    memory = usable_memory(world)
    lines = [_of_entry(entry, world) for entry in world.catalogue().values()]
    known = {line.file for line in lines}
    for line in _on_disk(world):
        if line.file not in known:
            known.add(line.file)
            lines.append(line)
    return [dataclasses.replace(each, fits=None if each.bytes is None else each.bytes <= memory) for each in lines]


def details(name: str, world: World, quant: str | None = None, rehash: bool = False) -> Generator[Event, None, Details]:
    """The model in detail; from its header alone where it is not downloaded. Raises BadModelFile where `rehash` finds damage."""
    model = read_model(name, world, quant, hollow=True)
    hub = model.hub
    if rehash and not (hub and hub.fetched):
        raise UsageError(f"{name} is not downloaded from the hub: there is no hash to compare", "leave --verify out")
    if hub and rehash:
        hub = yield from verify(dataclasses.replace(hub, verified=(None,) * len(hub.files)), world)
    entry = world.catalogue().get(name)
    line = _of_entry(entry, world) if entry else Line(name, "hub" if hub else "path")
    here = hub is None or hub.fetched
    line = dataclasses.replace(
        line,
        quant=model.info.quant,
        file=model.model.file if here else None,
        bytes=model.info.file_bytes,
        here=here,
        fits=model.info.file_bytes <= usable_memory(world),
    )
    verified = pins.is_verified(hub) if hub and hub.fetched and any(file.sha256 for file in hub.files) else None
    return Details(dataclasses.replace(model, hub=hub), line, tuple(_memory(model)), verified)


def pull(name: str, world: World, quant: str | None = None) -> Generator[Event, None, HubModel]:
    """Fetch what the hub has under this name now, and pin it. Files that are here and whole are not fetched again."""
    wanted = hub_name_of(name, world.catalogue(), quant)
    if not wanted:
        find(name, world, quant)
        raise UsageError(f"{name} is not of the hub: there is nothing to download", "run it as it is")
    found = _as_it_is_now(wanted, world) if is_open(name, wanted, quant, world) else on_hub(wanted, world)
    yield from (Note(note) for note in found.notes)
    assert found.hub
    model = found.hub
    if model.fetched:
        try:
            return (yield from verify(_as_pinned(model, world), world))
        except BadModelFile as error:
            yield Note(error.what)
            for file in model.files:
                world.hub.cache.discard(model.repo, model.commit, file)
            model = dataclasses.replace(model, paths=(), verified=())
    if model.bytes > usable_memory(world):
        yield Note(f"{size(model.bytes)} is more than the memory that is free here")
    yield from ask_about([model], world)
    return (yield from fetch(model, world))


def remove(name: str, world: World, quant: str | None = None) -> int:
    """Take the model's files off the disk; the bytes freed. What another revision shares stays.

    Raises UsageError for what is not of the hub, ModelNotFound.
    """
    wanted = hub_name_of(name, world.catalogue(), quant)
    if not wanted:
        path = find(name, world, quant).path
        raise UsageError(f"{name} was not downloaded by tokencli", f"remove {path} yourself if you want it gone")
    unnamed = str(dataclasses.replace(wanted, quant=None))  # of a name that leaves the quant open what a plan decided for
    pinned = world.pins.of(str(wanted)) or (world.pins.of(unnamed) if is_open(name, wanted, quant, world) else None)
    model = pinned or _cached(wanted, world)
    freed = _remove_files(model, world) if model else 0
    freed += world.hub.cache.remove_partials(wanted.repo)
    world.hollows.remove(wanted.repo)
    if not model and not freed:
        raise ModelNotFound(f"nothing of {wanted} is on this disk", "`tokencli models list` shows what is")
    return freed


def add(alias: str, target: str, world: World, quant: str | None = None) -> Path:
    """Name a model in the user's own catalogue; the file written to. Raises UsageError, ModelUnavailable."""
    if not _ALIAS.fullmatch(alias) or alias.endswith(".gguf"):
        raise UsageError(f"{alias} cannot be an alias", "use letters, digits, dots and dashes, as in my-model")
    known = world.catalogue()
    if target in known:
        raise UsageError(f"{target} is an alias itself", "name a repository (hf:ORG/REPO:QUANT) or a path")
    if wanted := hub_name_of(target, known, quant):
        table = {"repo": wanted.repo, **({"quant": wanted.quant} if wanted.quant else {})}
        if wanted.revision:
            raise UsageError("an alias follows the repository, it names no revision", "leave the revision out")
    else:
        found = find(target, world, quant)
        gguf_file.read_header(found.path)
        path = typed(target) if found.offered else found.path  # a folder of quants stays one
        table = {"path": str(path.resolve())}
    catalogue.add(world.own, alias, table)
    return world.own


def _as_it_is_now(wanted: HubName, world: World) -> Found:
    """What the hub has for a name that leaves the quant open: the quant that is pinned, else that of the best plan."""
    unnamed = dataclasses.replace(wanted, quant=None)
    if world.pins.of(str(wanted)):
        return on_hub(wanted, world)
    if (pinned := world.pins.of(str(unnamed))) and pinned.quant:
        listing = world.hub.listing(wanted.repo, wanted.revision)
        return on_hub(unnamed, world, choose(listing.files, pinned.quant, str(unnamed), None).variant)
    found = on_hub(wanted, world)
    if not found.offered:
        return found
    info = model_info(gguf_file.read_header(found.path))
    target = dataclasses.replace(ModelFile.of(info, str(found.path), str(wanted)), hub=found.hub, offered=found.offered)
    best = rough_planner(target, this_machine(world), world).choose(Wishes())
    note = (
        f"{best.quant} ({size(best.model.bytes)}) of {len(found.offered)}: the best plan for this machine; --quant takes another"
    )
    taken = next(each for each in found.offered if each.quant == best.quant)
    return dataclasses.replace(on_hub(unnamed, world, taken), notes=(note,))


def _of_entry(entry: catalogue.Entry, world: World) -> Line:
    source: Literal["package", "hub", "path"] = "hub" if entry.repo else "path" if entry.path else "package"
    told = {
        name: getattr(entry, name) for name in ("repo", "quant", "bytes", "title", "license", "for_what", "draft", "active_share")
    }
    line = Line(entry.alias, source, **told)
    if entry.repo:
        wanted = HubName(entry.repo, entry.quant)
        names = (str(wanted), str(dataclasses.replace(wanted, quant=None)))  # the second: a quant that a plan decided for
        pinned = next((each for name in names if (each := world.pins.of(name)) and pins.is_there(each)), None)
        model = pinned or _cached(wanted, world)
        return _here(line, model.paths[0], model.bytes, model.quant) if model else line
    try:
        path = catalogue.resolve(entry.alias, {entry.alias: entry})
        found = find(str(path), world) if path.is_dir() else Found(path)
        count = sum(found.path.with_name(part).stat().st_size for part in parts_of(found.path.name))
        return _here(line, str(found.path), count, found.quant or line.quant)
    except (TokencliError, OSError):
        return line


def _on_disk(world: World) -> Iterator[Line]:
    for model in world.pins.all():
        if pins.is_there(model):
            yield _here(Line(model.name, "hub", model.repo), model.paths[0], model.bytes, model.quant)
    cache = world.hub.cache
    for repo in cache.repositories():
        if listing := cache.listing(repo):
            for each in variants(listing.files):
                path = str(cache.snapshot(repo, listing.commit, each.files[0]))
                name = HubName(repo, each.quant or each.files[0].name)
                yield _here(Line(str(name), "hub", repo), path, each.bytes, each.quant)


def _here(line: Line, path: str, count: int, quant: str | None) -> Line:
    return dataclasses.replace(line, file=path, bytes=count, quant=quant, here=True)


def _cached(wanted: HubName, world: World) -> HubModel | None:
    found = cached(wanted, world)
    return found.hub if found else None


def _as_pinned(model: HubModel, world: World) -> HubModel:
    """The model with what is known of its hashes, under whatever name."""
    known = {path: stamp for each in world.pins.all() for path, stamp in zip(each.paths, each.verified, strict=True)}
    return dataclasses.replace(model, verified=tuple(known.get(path) for path in model.paths))


def _remove_files(model: HubModel, world: World) -> int:
    world.pins.remove(model)
    return sum(world.hub.cache.remove(model.repo, model.commit, file) for file in model.files)


def _memory(model: ModelFile) -> Iterator[Memory]:
    trained = model.info.context_trained or CONTEXTS[-1]
    for context in sorted({*(each for each in CONTEXTS if each < trained), min(trained, CONTEXTS[-1])}):
        plan = Plan(model.model, "cpu", 0, context, 1)
        yield Memory(context, sum(place.total for place in placed(plan, model.info)))

"""How the models of a run come to be on this disk: planned before anything large is fetched, then fetched, verified, pinned."""

import dataclasses
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from tokencli.app.isolation import started
from tokencli.app.remembered import draft_wanted
from tokencli.app.world import World, chosen, planner_here, read_draft, read_model
from tokencli.core import Event, Fetching, Note
from tokencli.errors import Interrupted, ModelUnavailable, TokencliError
from tokencli.listing import HubModel
from tokencli.names import hub_name
from tokencli.paths import stamp_of
from tokencli.plan.choose import Wishes
from tokencli.plan.quants import size
from tokencli.plan.sizes import ModelFile
from tokencli.world import pins

ASKED_ABOVE = 10**9
STOPPED = "the same command goes on where it stopped"

Models = tuple[ModelFile, ModelFile | None, list[str]]


def at_hand(name: str, wishes: Wishes, world: World, *, from_memory: bool = True) -> Generator[Event, None, Models]:
    """The model and the draft asked for, or (`from_memory`) measured to pay, whole and verified on this disk; and why there is no
    draft where there is none.

    Raises ModelUnavailable; DoesNotFit before anything is downloaded; TokencliError where the user does not want it.
    """
    target = read_model(name, world, wishes.quant, hollow=True)
    draft, notes = read_draft(draft_wanted(target, wishes, world) if from_memory else wishes.draft, target, world)
    if _not_fetched(target, draft) or target.offered:
        with started(world, wishes).engine as engine:
            planner = chosen(planner_here(engine, target, draft, True, None, world), name, wishes, world)
            planner.plan(wishes)
        target = dataclasses.replace(planner.target, offered=())
    yield from (Note(note) for note in target.notes)
    if missing := _not_fetched(target, draft):
        yield from ask_about(missing, world)
    try:
        target = yield from _whole(target, world)
        try:
            draft = (yield from _whole(draft, world)) if draft else None
        except ModelUnavailable as error:
            draft, notes = None, [f"without the draft: {error.what}"]
    except Interrupted as stop:
        yield Note(stop.hint)
        raise
    return target, draft, notes


def _not_fetched(*models: ModelFile | None) -> list[HubModel]:
    return [each.hub for each in models if each and each.hub and not each.hub.fetched]


def fetch(model: HubModel, world: World) -> Generator[Event, None, HubModel]:
    """All files of the model, into the Hugging Face cache; pinned under its name. Raises ModelUnavailable."""
    paths: list[str] = []
    verified: list[tuple[int, int] | None] = []
    before = 0
    for file in model.files:
        try:
            path, checked = yield from _moved_on(world.hub.download(model.repo, model.commit, file), before, model.bytes)
        except KeyboardInterrupt:
            raise Interrupted("interrupted", STOPPED) from None
        before += file.bytes
        paths.append(str(path))
        verified.append(stamp_of(path) if checked else None)
    if (name := hub_name(model.name)) and not name.revision:
        world.hub.cache.remember_main(model.repo, model.commit)
    return (yield from verify(dataclasses.replace(model, paths=tuple(paths), verified=tuple(verified)), world))


def verify(model: HubModel, world: World) -> Generator[Event, None, HubModel]:
    """The model, its hashes compared where that was not done yet, and remembered. Raises BadModelFile."""
    if not pins.is_verified(model):
        yield Note(f"checking {model.name} once against the hub's hash")
    found = yield from pins.verified(model)
    if found != world.pins.of(found.name):
        world.pins.put(found)
    return found


def missing_bytes(models: Iterable[HubModel], world: World) -> int:
    """What is still to be fetched of the models."""
    cache = world.hub.cache
    return sum(
        file.bytes - cache.fetched_bytes(model.repo, file)
        for model in models
        for file in model.files
        if not cache.find(model.repo, model.commit, file)
    )


def ask_about(models: list[HubModel], world: World) -> Iterator[Event]:
    """Say what will be downloaded and what room there is; ask first where it is much. Raises TokencliError for a no."""
    missing = missing_bytes(models, world)
    world.hub.check_room(missing)
    names = " and ".join(file_names(each) for each in models)
    folder = world.hub.cache.folder
    yield Note(f"{size(missing)} to download: {names}; {size(world.hub.free(folder))} are free in {folder}")
    if missing > ASKED_ABOVE and not world.confirm(f"{size(missing)} to download"):
        raise TokencliError("not downloaded, as you wished", "a smaller quant is chosen with :QUANT")


def file_names(model: HubModel) -> str:
    more = f" and {len(model.files) - 1} more parts" if len(model.files) > 1 else ""
    return f"{model.files[0].path} of hf:{model.repo}{more}"


def _whole(model: ModelFile, world: World) -> Generator[Event, None, ModelFile]:
    if not model.hub:
        return model
    found = yield from (verify(model.hub, world) if model.hub.fetched else fetch(model.hub, world))
    return dataclasses.replace(model, hub=found, model=dataclasses.replace(model.model, file=found.paths[0]))


def _moved_on(
    steps: Generator[Event, None, tuple[Path, bool]], before: int, total: int
) -> Generator[Event, None, tuple[Path, bool]]:
    """The steps of one file's download as those of all files."""
    while True:
        try:
            event = next(steps)
        except StopIteration as stop:
            path, checked = stop.value
            return path, checked
        yield dataclasses.replace(event, done=before + event.done, total=total) if isinstance(event, Fetching) else event

"""A target and its draft, loaded together and told apart: what the worker holds between a load and the requests after it."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokencli.core import DeviceBytes, DeviceKind, DryRun, Loaded, Plan, Request, Stats
from tokencli.decode.adaptive import LOOKUP, MODEL, Adaptive
from tokencli.decode.depth import Controller
from tokencli.decode.drafters import Guarded, ModelDrafter, NgramDrafter, NoDraft
from tokencli.decode.speculate import Drafter
from tokencli.engine.devices import list_devices
from tokencli.engine.log import (
    CACHE_OF_BLOCK,
    WEIGHTS_OF_BLOCK,
    LogCapture,
    beside,
    blocks_by_device,
    blocks_without_experts,
    device_bytes,
    flash_attention,
    load_failure,
    offloaded,
)
from tokencli.engine.model import LoadedModel, Opening
from tokencli.engine.pages import give_back
from tokencli.engine.prompt import template_name
from tokencli.errors import EngineError, OutOfMemory, TokencliError

_TELLING = 8  # fewer rounds say little


@dataclass(slots=True)
class Pair:
    """A loaded target, with or without a draft model beside it. `depth` is the plan's, or what the model can take back."""

    plan: Plan
    target: LoadedModel
    draft: LoadedModel | None
    depth: int
    loaded: Loaded
    controller: Controller | None = None  # where the depth adapts
    model_drafter: ModelDrafter | None = None
    guarded: Guarded | None = None
    told_off: bool = False

    @classmethod
    def load(
        cls,
        llama: Any,
        log: LogCapture,
        plan: Plan,
        progress: Callable[[float], bool],
        testing: Callable[[], None],
        pace: object = None,
    ) -> "Pair":
        """Load all that the plan asks for. A draft that cannot be had is a note, not an error. Raises EngineError, DoesNotFit.

        `pace`: what an earlier answer's Done told of the same models.
        """
        start = time.perf_counter()
        log.clear()
        target = _open(llama, log, Opening.of_target(plan), progress)
        if not plan.page_cache:
            give_back(Path(plan.model.file))
        testing()
        _warm_up(target)
        on_gpu, layers = offloaded(log.lines) or (0, plan.model.offloadable_layers)
        kinds = {device.id: device.kind for device in list_devices()}
        places, used = device_bytes(log.lines, kinds), flash_attention(log.lines)
        notes: list[str] = []
        draft, depth, draft_places = _load_draft(llama, log, plan, target, kinds, notes)
        loaded = Loaded(
            gpu_layers=on_gpu,
            layers=layers,
            context=target.context,
            devices=beside(places, draft_places),
            load_seconds=time.perf_counter() - start,
            draft=depth > 0,
            notes=tuple(notes),
            template=template_name(target.vocabulary),
            flash_attention=used,
        )
        return cls(plan, target, draft, depth, loaded, _controller(plan, target, draft, depth, pace))

    @property
    def engine_seconds(self) -> tuple[float, float]:
        """Time inside llama_decode, of the target and of the draft."""
        return self.target.seconds, self.draft.seconds if self.draft else 0.0

    def use_threads(self, count: int | None) -> None:
        for model in (self.target, self.draft):
            if model:
                model.use_threads(count)

    def drafter(self, request: Request) -> Guarded:
        """The drafter for one answer; a draft model's memory is kept where the request keeps the target's.

        Where the depth adapts, lookup goes on after a draft model that failed.
        """
        failed = self.guarded is not None and self.guarded.failure is not None
        model = self._model_drafter(self.draft, request, request.reuse and not failed) if self.draft else None
        self.guarded = Guarded(self._drafter(model), self._drafter(None) if self.controller else None)
        return self.guarded

    def _drafter(self, model: ModelDrafter | None) -> Drafter:
        if self.controller:
            return Adaptive(self.controller, model, time.perf_counter, lambda: self.target.seconds)
        return model or (NgramDrafter() if self.depth else NoDraft())

    def _model_drafter(self, draft: LoadedModel, request: Request, keep: bool) -> ModelDrafter:
        draft.sampling = request.sampling
        draft.seconds = 0.0
        if not keep or self.model_drafter is None:
            draft.rollback(0)
            self.model_drafter = ModelDrafter(draft, request.sampling.seed, time.perf_counter)
        self.model_drafter.begin(request.sampling.seed)
        return self.model_drafter

    def paces_told(self, stats: Stats) -> Iterator[str]:
        """That the draft does not pay, once a load: where the second half of an answer went nearly without it."""
        half = stats.depths[len(stats.depths) // 2 :]
        gain = self.controller.gain() if self.controller else None
        if self.draft and gain is not None and gain < 1 and not self.told_off and len(half) >= _TELLING and max(half) < 1:
            self.told_off = True
            yield f"the draft is off: measured {gain:.2g}x the speed of plain decoding here; it is tried again now and then"

    def close(self) -> None:
        for model in (self.draft, self.target):
            if model:
                model.close()


def _controller(plan: Plan, target: LoadedModel, draft: LoadedModel | None, depth: int, pace: object) -> Controller | None:
    """What chooses the depth, where the plan leaves it open."""
    if not (depth and plan.draft and plan.draft.adaptive):
        return None
    sources = {LOOKUP: 0.0, **({MODEL: draft.weight_bytes / target.weight_bytes} if draft else {})}
    return Controller.going_on(depth, sources, pace)


def _open(llama: Any, log: LogCapture, opening: Opening, progress: Callable[[float], bool], dry: bool = False) -> LoadedModel:
    """Raises what llama.cpp's log says of a failure; nothing of the model stays then."""
    model = None
    try:
        model = LoadedModel(llama, opening, progress, dry)
        model.open_context()
    except (EngineError, OutOfMemory) as error:
        if model:
            model.close()
        raise load_failure(log.errors, opening.file) or error from None
    return model


def _warm_up(model: LoadedModel) -> None:
    """Raises what its first token does; nothing of the model stays then."""
    try:
        model.warm_up()
    except TokencliError:
        model.close()
        raise


def _load_draft(
    llama: Any, log: LogCapture, plan: Plan, target: LoadedModel, kinds: dict[str, DeviceKind], notes: list[str]
) -> tuple[LoadedModel | None, int, tuple[DeviceBytes, ...]]:
    """The draft model if one is wanted, the depth to draft at (0 for none), and the bytes it takes. Adds notes of what is not."""
    wanted = plan.draft
    if wanted is None:
        return None, 0, ()
    depth = wanted.max_tokens if target.draft_limit is None else min(wanted.max_tokens, target.draft_limit)
    if depth == 0:
        notes.append(f"without a draft: {plan.model.architecture} models cannot take tokens back here")
        return None, 0, ()
    if wanted.kind == "ngram":
        return None, depth, ()
    log.clear()
    try:
        draft = _open(llama, log, Opening.of_draft(plan, wanted), lambda _fraction: True)
        _warm_up(draft)
    except TokencliError as error:
        notes.append(f"without the draft: {error.what}")
        return None, 0, ()
    if draft.draft_limit is not None:
        draft.close()
        notes.append("without the draft: a recurrent model cannot take back what the target refuses")
        return None, 0, ()
    return draft, depth, device_bytes(log.lines, kinds)


def dry_run(llama: Any, log: LogCapture, plan: Plan) -> DryRun:
    """What llama.cpp would reserve for compute and output, exactly, without reserving it, and where it would put each block.

    The draft's own compute is a term beside. Raises EngineError, DoesNotFit.
    """
    kinds = {device.id: device.kind for device in list_devices()}
    log.clear()
    log.debug = True
    try:
        # Recurrent states are allocated even in a dry run, and their copies change no other buffer: none are asked for.
        places = _dry_reserve(llama, log, replace(Opening.of_target(plan), snapshots=0), kinds)
        lines = list(log.lines)
        if plan.draft and plan.draft.kind == "model":
            log.clear()
            draft = _dry_reserve(llama, log, Opening.of_draft(plan, plan.draft), kinds)
            places = beside(places, (replace(place, output=0) for place in draft))
    finally:
        log.debug = False
    layers, caches = (blocks_by_device(lines, pattern) for pattern in (WEIGHTS_OF_BLOCK, CACHE_OF_BLOCK))
    return DryRun(places, layers, caches, blocks_without_experts(lines))


def _dry_reserve(llama: Any, log: LogCapture, opening: Opening, kinds: Mapping[str, DeviceKind]) -> tuple[DeviceBytes, ...]:
    """Compute and output by device: the lines for weights and caches print 0.00 in a dry run (FACTS, Memory)."""
    model = _open(llama, log, opening, lambda _fraction: True, dry=True)
    places = device_bytes(log.lines, kinds)
    model.close()
    return places

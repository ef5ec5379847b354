"""What an answer taught of its draft, kept for the next run with the same models on the same device."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokencli.app.world import World
from tokencli.core import Done, Event, Plan
from tokencli.world import gguf_file
from tokencli.world.paces import Paces


def known_pace(plan: Plan, world: World) -> Mapping[str, Any] | None:
    """What was learned before; None where nothing adapts or nothing is known."""
    key = _key(plan, world)
    return _paces(world).find(key) if key else None


def keeping_pace(events: Iterable[Event], plan: Plan, world: World) -> Iterator[Event]:
    """The events of an answer as they come; what its Done tells is kept."""
    for event in events:
        if isinstance(event, Done) and event.pace is not None:
            keep_pace(plan, world, event.pace)
        yield event


def keep_pace(plan: Plan, world: World, pace: Mapping[str, Any]) -> bool:
    """Whether there is something that it can be kept for."""
    key = _key(plan, world)
    if key:
        _paces(world).keep(key, pace)
    return key is not None


def _paces(world: World) -> Paces:
    return Paces(world.cache / "paces.json")


def _key(plan: Plan, world: World) -> str | None:
    """All that times and guesses depend on: both files, the build and the processor, and where everything runs."""
    draft = plan.draft
    if draft is None or not draft.adaptive:
        return None
    files = [plan.model.file, *([draft.file] if draft.file else [])]
    with contextlib.suppress(OSError):
        known = [gguf_file.identity(Path(file)) for file in files]
        placed = (plan.backend, plan.device, plan.gpu_layers, plan.cpu_moe_layers, plan.threads, plan.kv_type, plan.extra_buffers)
        text = repr((known, world.find_verdicts().key, placed, draft.kind, draft.device, draft.max_tokens))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    return None

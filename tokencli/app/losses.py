"""How measured losses come to a planner: found by the file's bytes, as values, with a line for what no longer holds."""

import dataclasses
from pathlib import Path

from tokencli.plan.loss import NOTHING_MEASURED, Measured
from tokencli.plan.sizes import ModelFile
from tokencli.world import gguf_file
from tokencli.world.losses import Loss, LossesFile
from tokencli.world.tuned import this_build

AGAIN = "tokencli bench MODEL --quality measures anew"


def with_losses(model: ModelFile, losses: LossesFile) -> ModelFile:
    """The model with what was measured of its file, and of the others of its folder that are offered."""
    if not losses.file.exists():
        return model
    file = Path(model.model.file)
    own = next((each.path for each in model.offered if file.as_posix().endswith(f"/{each.path}")), None)
    others: tuple[tuple[str, Measured], ...] = ()
    if own and not model.hub:
        folder = file.parents[len(Path(own).parts) - 1]
        others = tuple((each.quant, measured(folder / each.path, losses)) for each in model.offered if each.quant)
    return dataclasses.replace(model, measured=measured(file, losses), offered_measured=others)


def measured(file: Path, losses: LossesFile) -> Measured:
    """What was measured of a file with this build. A list that cannot be read is a line, never an error."""
    entries, faults = losses.entries()
    try:
        identity = gguf_file.identity(file)
    except OSError:
        return NOTHING_MEASURED
    own = [each for each in entries if each.identity == identity]
    build = this_build()
    found = {each.kv_type: each for each in own if each.build == build}
    weights = found.get("f16")
    return Measured(
        weights=_percent(weights) if weights else None,
        caches=tuple((kv_type, _percent(each)) for kv_type, each in found.items() if kv_type != "f16"),
        notes=(
            *faults[:1],
            *map(told, found.values()),
            *(_stale(each, build) for each in own if each.kv_type not in found),
        ),
    )


def told(entry: Loss) -> str:
    what = "its weights lose" if entry.kv_type == "f16" else f"a KV cache of {entry.kv_type} loses"
    interval = f"{entry.percent:.2g} % of perplexity ({entry.low:.2g} to {entry.high:.2g})"
    return f"{what} {interval}, measured on {entry.date} against {entry.against}"


def _stale(entry: Loss, build: str) -> str:
    return f"the loss measured on {entry.date} is not used: llama-cpp-python was {entry.build} then and is {build} now; {AGAIN}"


def _percent(entry: Loss) -> float:
    """A gain is noise: nothing is lost then."""
    return max(round(entry.percent, 2), 0.0)

"""`scripts/bench calibration`: tunes one model made from SmolLM2, then holds what `plan` predicts of others against speeds."""

import statistics
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer
from make_models import BLOCKS, F16, Q8_0, Block, quantize_apart, rebuild, written

from tokencli.app.bench import Report, bench
from tokencli.app.bench import Task as BenchTask
from tokencli.app.plan import plan
from tokencli.app.tune import Result, Task, tune
from tokencli.app.world import World
from tokencli.cli.tune_view import result_lines
from tokencli.core import Note
from tokencli.plan.choose import Wishes
from tokencli.world import catalogue
from tokencli.world.tuned import TunedFile

_PROMPT, _TOKENS = 512, 64  # decode is predicted behind a prompt of 512


def calibration(
    tuned: Annotated[str, typer.Option(help="Which variant is tuned: Q4_1, Q8_0, F16, Q8_0 x 2, F16 x 2.")] = "Q4_1",
    threads: Annotated[int, typer.Option(help="0: as planned.")] = 0,
    budget: float = 45.0,
    rounds: int = 3,
) -> None:
    """Decode as predicted after tuning one variant of SmolLM2, over decode as measured, for all variants."""
    wishes = Wishes(device="cpu", draft="off", threads=threads or None, context=1024)
    models = variants()
    with tempfile.TemporaryDirectory() as folder:
        world = World(tuned_file=TunedFile(Path(folder) / "tuned.toml"))
        result: Result = _ended(tune(Task(str(models[tuned]), wishes, budget=budget), world))
        print("\n".join(result_lines(result, "a folder that is deleted")))
        predicted = {name: plan(str(file), wishes, None, world).plan.predicted for name, file in models.items()}
    untuned = World(tuned_file=TunedFile(Path(folder) / "none"))
    measured = _measured(models, wishes, untuned, rounds)
    print(f"\n| model ({tuned} was tuned) | predicted | from | measured | predicted / measured |")
    print("|---|---|---|---|---|")
    for name, decode in measured.items():
        known, middle = predicted[name], statistics.median(decode)
        said = known.decode_tokens_per_second
        ratio = f"{said / middle:.2f}" if said else "-"
        told = f"{said or 0.0:.1f} | {known.origin} | {middle:.1f} ({min(decode):.1f} to {max(decode):.1f})"
        print(f"| {name} | {told} | {ratio} |")


def variants() -> dict[str, Path]:
    """The demo model as it is, and made anew in other quants and twice as deep: the same blocks once more."""
    original = catalogue.resolve("smollm2-135m", catalogue.read_catalogue(catalogue.data_folder()))
    folder = platformdirs.user_cache_path("tokencli") / "models" / "calibrating-v1"
    folder.mkdir(parents=True, exist_ok=True)
    twice = folder / "twice-q4_1.gguf"
    if not twice.exists():
        with written(twice, "the model, twice as deep") as partial:
            rebuild(original, partial, [Block(index % BLOCKS, silenced=index >= BLOCKS) for index in range(2 * BLOCKS)])
    found = {"Q4_1": original}
    for depth, source in ((1, original), (2, twice)):
        for quant, number in (("Q8_0", Q8_0), ("F16", F16)):
            name = quant if depth == 1 else f"{quant} x 2"
            found[name] = folder / f"{quant}-{depth}.gguf"
            if not found[name].exists():
                with written(found[name], name) as partial:
                    quantize_apart(source, partial, number)
    return found


def _measured(models: Mapping[str, Path], wishes: Wishes, world: World, rounds: int) -> dict[str, list[float]]:
    """Decode speeds, the models in turn: a computer that slows down does so for all."""
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, file in models.items():
            task = BenchTask(str(file), wishes, prompt_tokens=_PROMPT, tokens=_TOKENS, runs=1)
            report: Report = _ended(bench(task, world))
            found[name].append(report.ran[0].stats.decode_tokens_per_second or 0.0)
    return found


def _ended(steps: Generator[Any, None, Any]) -> Any:
    """What the steps return; notes are printed as they come."""
    while True:
        try:
            event = next(steps)
        except StopIteration as stop:
            return stop.value
        if isinstance(event, Note):
            print(f"note: {event.text}")

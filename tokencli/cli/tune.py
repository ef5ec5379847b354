"""`tokencli tune`: parses, hands over to the app, shows what is tried and what came of it. No decisions."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokencli.cli import options
from tokencli.cli.follow import follow
from tokencli.cli.terminal import Terminal
from tokencli.errors import UsageError

if TYPE_CHECKING:
    from tokencli.app import World
    from tokencli.app.tune import Result

GOALS = ("decode", "ttft", "turn")

TunedModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="An alias, hf:ORG/REPO[:QUANT], or a path to a .gguf or a folder.",
        show_default=False,
        autocompletion=options.known_models,
    ),
]
Budget = Annotated[str, typer.Option("--budget", metavar="TIME", help="How long to measure: 90s, 5m.")]
Goal = Annotated[str, typer.Option("--goal", metavar="|".join(GOALS), help="What is to be fast.")]
Prompts = Annotated[
    Path | None, typer.Option("--prompts", metavar="FILE|FOLDER", help="Measure with prompts of your own.", show_default=False)
]
AllowLoss = Annotated[bool, typer.Option("--allow-loss", help="Also try what changes answers: a smaller KV type.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be tried, and end.")]
ListTuned = Annotated[bool, typer.Option("--list", help="List what is remembered and end.")]
Forget = Annotated[
    str | None,
    typer.Option(
        "--forget",
        metavar="MODEL|calibration",
        help="Forget what is remembered of a model, or of this computer's speed, and end.",
        show_default=False,
    ),
]


def tune_command(terminal: Terminal) -> Callable[..., None]:
    def tune(
        model: TunedModel = None,
        budget: Budget = "120s",
        goal: Goal = "turn",
        prompts: Prompts = None,
        allow_loss: AllowLoss = False,
        dry_run: DryRun = False,
        list_tuned: ListTuned = False,
        forget: Forget = None,
        gpu_layers: options.GpuLayers = None,
        cpu_moe: options.CpuMoe = None,
        context: options.Context = None,
        threads: options.Threads = None,
        profile: options.Profile = None,
        device: options.Device = None,
        kv_type: options.KvType = None,
        draft: options.Draft = None,
        draft_tokens: options.DraftTokens = None,
        quant: options.Quant = None,
        yes: options.Yes = False,
        as_json: options.Json = False,
        quiet: options.Quiet = False,
    ) -> None:
        """Measure this computer with this model, and remember the fastest settings: run, chat and plan use them."""
        from tokencli.app import World
        from tokencli.app import tune as story

        world = World(confirm=lambda what: terminal.confirm(what, yes))
        if list_tuned or forget is not None:
            _show_remembered(world, forget, terminal, as_json)
            return
        if model is None:
            raise UsageError("which model is to be tuned?", "tokencli tune MODEL")
        options.one_of("--goal", goal, GOALS)
        task = story.Task(
            model=model,
            wishes=options.wishes(gpu_layers, cpu_moe, device, profile, context, kv_type, threads, draft, draft_tokens, quant),
            budget=budget_seconds(budget),
            goal=goal,  # type: ignore[arg-type]  # one_of has checked it
            prompts=prompts,
            loss=allow_loss,
            dry_run=dry_run,
        )
        result = _followed(story.tune(task, world), terminal, quiet or as_json)
        _show_result(result, world, terminal, as_json)

    return tune


def budget_seconds(text: str) -> float:
    """`--budget`: 90, 90s or 5m. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min)?", text.strip())
    seconds = float(found[1]) * (1 if found[2] in (None, "s") else 60) if found else 0.0
    if not 1 <= seconds <= 86_400:
        raise UsageError(f"--budget {text} is out of range", "give seconds or minutes: 90s, 5m")
    return seconds


def _followed(steps: Any, terminal: Terminal, quiet: bool) -> "Result":
    from tokencli.cli.tune_view import TuneView

    view = TuneView(terminal, quiet=quiet)
    result: Result = follow(steps, view.show, view.clear)
    return result


def _show_result(result: "Result", world: "World", terminal: Terminal, as_json: bool) -> None:
    from tokencli.cli import tune_view as view

    file = str(world.tuned_file.file)
    lines = [view.result_json(result, file)] if as_json else view.result_lines(result, file)
    terminal.stdout.write("".join(f"{line}\n" for line in lines))
    terminal.stdout.flush()
    if result.interrupted:
        raise typer.Exit(130)


def _show_remembered(world: "World", forget: str | None, terminal: Terminal, as_json: bool) -> None:
    from tokencli.app import tune as story
    from tokencli.app.calibrated import calibrations
    from tokencli.cli import tune_view as view

    if forget is not None:
        count = story.forget(forget, world)
        if not count:
            raise UsageError(f"nothing is remembered of {forget}", "tokencli tune --list")
        terminal.stderr.write(f"{count} forgotten\n")
        return
    entries, faults = story.listed(world)
    speeds, more = calibrations(world)
    lines = [view.list_json(entries, speeds)] if as_json else view.list_lines(entries, speeds)
    terminal.stdout.write("".join(f"{line}\n" for line in lines))
    terminal.stderr.write("".join(f"note: {fault}\n" for fault in (*faults, *more)))

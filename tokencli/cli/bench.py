"""`tokencli bench`: parses, hands over to the app, shows what was measured. No decisions."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokencli.cli import options
from tokencli.cli.follow import follow
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Progress
from tokencli.errors import UsageError

if TYPE_CHECKING:
    from tokencli.app import World
    from tokencli.app.bench import Report
    from tokencli.plan.choose import Wishes

FORMATS = ("json", "csv", "md")

PROMPT_TOKENS, RUNS = 512, 5

PromptTokens = Annotated[
    int | None, typer.Option("--prompt-tokens", metavar="N", help="Length of the prompt: 512.", show_default=False)
]
Tokens = Annotated[int, typer.Option("--tokens", metavar="N", help="Length of the answer.")]
Compare = Annotated[
    Path | None, typer.Option("--compare", metavar="OLD.json", help="Compare with an earlier --json.", show_default=False)
]
Anyway = Annotated[bool, typer.Option("--anyway", help="Compare even with another computer, model or length.")]
Runs = Annotated[
    int | None, typer.Option("--runs", metavar="N", help="Answers to measure, after one to warm up: 5.", show_default=False)
]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE|FOLDER", help="Which draft pays for prompts of your own?", show_default=False),
]
Depths = Annotated[
    str | None,
    typer.Option(
        "--depths", metavar="N,N|none", help="Context depths for pp and tg: 0 and 2048 where they fit.", show_default=False
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="|".join(FORMATS), help="Print this instead of a table.", show_default=False)
]
Quality = Annotated[bool, typer.Option("--quality", help="Measure instead what a quant or a KV type loses, on a text.")]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="QUANT|FILE", help="What --quality compares with: the best here.", show_default=False),
]
OwnText = Annotated[
    Path | None, typer.Option("--text", metavar="FILE", help="The text --quality reads; one is shipped.", show_default=False)
]


def bench_command(terminal: Terminal) -> Callable[..., None]:
    def bench(
        model: options.Model,
        prompt_tokens: PromptTokens = None,
        tokens: Tokens = 128,
        runs: Runs = None,
        depths: Depths = None,
        prompts: Prompts = None,
        form: Format = None,
        compare: Compare = None,
        anyway: Anyway = False,
        quality: Quality = False,
        against: Against = None,
        text: OwnText = None,
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
        """Measure TTFT, inter-token latency, prefill and decode speed, with and without the draft; llama-bench's pp and tg."""
        options.check_range(("--prompt-tokens", prompt_tokens, 1, 1 << 24), ("--tokens", tokens, 2, 1 << 24))
        options.check_range(("--runs", runs, 1, 1000))
        if quality:
            if compare or draft or draft_tokens or prompts or depths or form:
                what = "--quality takes no draft, prompts, depths or other format, and compares with no earlier report"
                raise UsageError(what, "leave --draft and --compare out")
            wishes = options.wishes(gpu_layers, cpu_moe, device, profile, context, kv_type, threads, draft, draft_tokens, quant)
            measure_quality(model, wishes, against, text, terminal, yes, as_json, quiet)
            return
        if against or text:
            raise UsageError("--against and --text are for --quality", "add --quality, or leave them out")
        form = "json" if as_json else options.one_of("--format", form, FORMATS)
        from tokencli.app import World

        wishes = options.wishes(gpu_layers, cpu_moe, device, profile, context, kv_type, threads, draft, draft_tokens, quant)
        world = World(confirm=lambda what: terminal.confirm(what, yes))
        if prompts:
            _refuse_beside_prompts(prompt_tokens, depths, compare, form)
            _compare_drafts(model, prompts, wishes, tokens, runs, world, terminal, quiet, as_json)
            return
        from tokencli.app import bench as story
        from tokencli.app.bench_compare import read_earlier

        lengths = prompt_tokens or PROMPT_TOKENS, tokens, runs or RUNS
        earlier = read_earlier(compare) if compare else None
        task = story.Task(model, wishes, *lengths, depths_of(depths), earlier, anyway)
        report = _followed(story.bench(task, world), terminal, quiet or form is not None)
        terminal.stdout.write("".join(f"{line}\n" for line in _rendered(report, form)))
        terminal.stdout.flush()
        if report.interrupted:
            raise typer.Exit(130)

    return bench


def _refuse_beside_prompts(prompt_tokens: int | None, depths: str | None, compare: Path | None, form: str | None) -> None:
    given = {"--prompt-tokens": prompt_tokens, "--depths": depths, "--compare": compare, "--format": form and form != "json"}
    if beside := next((option for option, value in given.items() if value), None):
        raise UsageError(f"{beside} says nothing of prompts of your own", f"leave out --prompts or {beside}")


def _compare_drafts(
    model: str,
    prompts: Path,
    wishes: "Wishes",
    tokens: int,
    runs: int | None,
    world: "World",
    terminal: Terminal,
    quiet: bool,
    as_json: bool,
) -> None:
    from tokencli.app.drafts import Task, compare_drafts
    from tokencli.cli import drafts_view as view

    shown = view.Shown(terminal, quiet=quiet or as_json)
    report = follow(compare_drafts(Task(model, prompts, wishes, tokens, runs), world), shown.show, shown.clear)
    lines = [view.drafts_json(report)] if as_json else view.drafts_lines(report)
    terminal.stdout.write("".join(f"{line}\n" for line in lines))
    terminal.stdout.flush()
    if report.interrupted:
        raise typer.Exit(130)


def measure_quality(
    model: str,
    wishes: "Wishes",
    against: str | None,
    text: Path | None,
    terminal: Terminal,
    yes: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """`bench --quality`. Raises typer.Exit where it was broken off."""
    from tokencli.app import World
    from tokencli.app import quality as story
    from tokencli.cli import quality_view as view

    options.check_range(("--context", wishes.context, 32, 1 << 24))
    world = World(confirm=lambda what: terminal.confirm(what, yes))
    steps = story.quality(story.Task(model, wishes, against, text), world)
    report = view.followed(steps, terminal, quiet or as_json)
    lines = [view.quality_json(report)] if as_json else view.quality_lines(report)
    terminal.stdout.write("".join(f"{line}\n" for line in lines))
    terminal.stdout.flush()
    if report.interrupted:
        raise typer.Exit(130)


def depths_of(text: str | None) -> tuple[int, ...] | None:
    """`--depths`: numbers of tokens; none of them for "none". Raises UsageError."""
    if text is None:
        return None
    if text == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < 1 << 24 for part in parts):
        raise UsageError(f"--depths {text} is no list of token counts", "use --depths 0,2048 or --depths none")
    return tuple(int(part) for part in parts)


def _rendered(report: "Report", form: str | None) -> list[str]:
    from tokencli.cli import bench_view as view

    shown = {None: view.report_lines, "json": view.json_lines, "csv": view.csv_lines, "md": view.markdown_lines}
    return shown[form](report)


def _followed(steps: Any, terminal: Terminal, quiet: bool) -> "Report":
    from tokencli.app.bench import Ran
    from tokencli.app.throughput import Passed

    progress = Progress(terminal, quiet=quiet)

    def show(event: Any) -> None:
        if isinstance(event, Ran):
            progress.tell(f"{event.arm} {event.number}")
        elif isinstance(event, Passed):
            progress.tell(f"{event.test} {event.number}")
        else:
            progress.show(event)

    report: Report = follow(steps, show, progress.clear)
    return report

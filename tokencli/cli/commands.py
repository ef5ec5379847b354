"""The command line: parses, checks the form of what was typed, and hands over to the app. No decisions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import tokencli
from tokencli.cli import options
from tokencli.cli.bench import bench_command
from tokencli.cli.chat import chat_command
from tokencli.cli.doctor import doctor_command
from tokencli.cli.models_commands import models_app
from tokencli.cli.profiles_commands import profiles_app
from tokencli.cli.terminal import Terminal
from tokencli.cli.tune import tune_command
from tokencli.cli.views import RunView, error_json, error_line
from tokencli.errors import Interrupted, TokencliError, UsageError

HELP = "Run large language models on small computers: fast, and honest about how fast."

_INTERRUPTED = 130
_BROKEN_PIPE = 1


def run_command_line(arguments: Sequence[str], terminal: Terminal) -> int:
    """Run one command; the exit code. Every error becomes one line on stderr, with `--json` an object on stdout."""
    as_json = "--json" in arguments
    try:
        code = application(terminal)(list(arguments), standalone_mode=False, prog_name="tokencli")
        return int(code or 0)
    except TokencliError as error:
        return _report(error, terminal, as_json)
    except KeyboardInterrupt:
        return _report(Interrupted("interrupted"), terminal, as_json)
    except BrokenPipeError:
        _silence(terminal)
        return _BROKEN_PIPE
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own errors; typer has no public base for them
            hint = "see tokencli --help"
            return _report(UsageError(error.format_message().rstrip("."), hint), terminal, as_json)
        return _report(_our_fault(error), terminal, as_json)


def _our_fault(error: Exception) -> TokencliError:
    """An error nobody foresaw: the user gets a line, the traceback goes to a file to report it with."""
    import traceback

    import platformdirs

    file = platformdirs.user_cache_path("tokencli") / "crash.log"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), "utf-8")
    except OSError:
        traceback.print_exception(error)
    return TokencliError(f"internal error: {type(error).__name__}: {error}", f"please report it, with {file}")


def _report(error: TokencliError, terminal: Terminal, as_json: bool) -> int:
    if as_json:
        terminal.stdout.write(error_json(error) + "\n")
        terminal.stdout.flush()
    else:
        terminal.stderr.write(error_line(error) + "\n")
        terminal.stderr.flush()
    return error.exit_code


def _silence(terminal: Terminal) -> None:
    """The reader has gone (`| head`): let nothing more be written, not even at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), terminal.stdout.fileno())


def application(terminal: Terminal) -> Callable[..., Any]:
    app = typer.Typer(
        name="tokencli",
        help=HELP,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    def version(value: bool) -> None:
        if value:
            terminal.stdout.write(f"tokencli {tokencli.__version__}\n")
            raise typer.Exit

    @app.callback()
    def top(
        _version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=version, is_eager=True)] = False,
    ) -> None:
        pass

    app.command("run")(_run_command(terminal))
    app.command("chat")(chat_command(terminal))
    app.command("plan")(_plan_command(terminal))
    app.command("bench")(bench_command(terminal))
    app.command("tune")(tune_command(terminal))
    app.command("doctor")(doctor_command(terminal))
    app.add_typer(models_app(terminal))
    app.add_typer(profiles_app(terminal))
    return typer.main.get_command(app)


def _run_command(terminal: Terminal) -> Callable[..., None]:
    def run(
        model: options.RunModel = None,
        prompt: options.Prompt = None,
        file: options.PromptFile = None,
        system: options.System = None,
        max_tokens: options.MaxTokens = None,
        timeout: options.Timeout = None,
        stop: options.Stop = None,
        temperature: options.Temperature = 0.8,
        top_k: options.TopK = 40,
        top_p: options.TopP = 0.95,
        min_p: options.MinP = 0.05,
        seed: options.Seed = None,
        gpu_layers: options.GpuLayers = None,
        cpu_moe: options.CpuMoe = None,
        context: options.Context = None,
        threads: options.Threads = None,
        profile: options.Profile = None,
        device: options.Device = None,
        kv_type: options.KvType = None,
        ubatch: options.Ubatch = None,
        draft: options.Draft = None,
        draft_tokens: options.DraftTokens = None,
        show_draft: options.ShowDraft = False,
        grammar: options.Grammar = None,
        json_schema: options.JsonSchema = None,
        stats: options.ShowStats = False,
        session: options.Session = None,
        quant: options.Quant = None,
        yes: options.Yes = False,
        as_json: options.Json = False,
        quiet: options.Quiet = False,
    ) -> None:
        """One answer. The prompt is --file, piped stdin and PROMPT, joined in this order."""
        options.check_sampling(temperature, top_k, top_p, min_p, seed)
        if grammar and json_schema:
            raise UsageError("--grammar and --json-schema both say what the answer may be", "leave one of them out")
        if session is not None and (grammar or json_schema):
            raise UsageError("--grammar and --json-schema are for a single answer", "leave out --session")
        options.check_range(("--max-tokens", max_tokens, 1, 1 << 31), ("--timeout", timeout, 0.001, 1e9))
        from tokencli import app as story
        from tokencli.core import Sampling

        if model is None:
            raise no_model()
        question = story.Question(
            model=model,
            prompt=_prompt(terminal, file, prompt),
            system=system,
            wishes=options.wishes(
                gpu_layers, cpu_moe, device, profile, context, kv_type, threads, draft, draft_tokens, quant, ubatch
            ),
            sampling=Sampling(temperature, top_k, top_p, min_p, story.random_seed() if seed is None else seed),
            max_tokens=max_tokens,
            timeout=timeout,
            stop=tuple(stop or ()),
            show_draft=show_draft,
            grammar=options.grammar(grammar),
            json_schema=options.json_schema(json_schema),
        )
        world = story.World(confirm=lambda what: terminal.confirm(what, yes))
        events = story.run(question, world) if session is None else story.run_in_session(question, session, world)
        _show_run(events, RunView(terminal, quiet=quiet, as_json=as_json, with_chart=stats))

    return run


def no_model() -> UsageError:
    from tokencli.app import World, ranking

    return ranking.no_model(World())


def _plan_command(terminal: Terminal) -> Callable[..., None]:
    def plan(
        model: options.Model,
        machine: options.Machine = None,
        check: options.Check = False,
        load: options.Load = False,
        profile: options.Profile = None,
        device: options.Device = None,
        gpu_layers: options.GpuLayers = None,
        cpu_moe: options.CpuMoe = None,
        context: options.Context = None,
        kv_type: options.KvType = None,
        ubatch: options.Ubatch = None,
        threads: options.Threads = None,
        draft: options.Draft = None,
        draft_tokens: options.DraftTokens = None,
        quant: options.Quant = None,
        target_tps: options.TargetTps = None,
        max_loss: options.MaxLoss = None,
        why: options.Why = None,
        as_json: options.Json = False,
    ) -> None:
        """What would be run, what it needs and why; nothing is loaded."""
        if machine and device == terminal.environ.get("TOKENCLI_DEVICE"):
            device = None  # it is of this computer
        if (check or load) and machine:
            raise UsageError("--check needs this computer, --machine names another one", "leave one of them out")
        if (check or load) and why:
            raise UsageError("--check compares a plan, it has no reasons for --why", "leave one of them out")
        from tokencli.app import World
        from tokencli.app import plan as story
        from tokencli.cli import plan_view

        wishes = options.wishes(
            gpu_layers,
            cpu_moe,
            device,
            profile,
            context,
            kv_type,
            threads,
            draft,
            draft_tokens,
            quant,
            ubatch,
            target_tps,
            max_loss,
        )
        if load or check:
            peak = None
            if load:
                decided, checks, peak = story.check_load(model, wishes, World())
            else:
                decided, checks = story.check(model, wishes, World())
            if as_json:
                terminal.stdout.write(plan_view.checks_json(decided, checks, peak) + "\n")
            else:
                plan_view.show_checks(checks, peak, terminal)
            return
        decision = story.plan(model, wishes, machine, World(), why)
        if as_json:
            terminal.stdout.write(plan_view.decision_json(decision) + "\n")
        else:
            plan_view.show_decision(decision, terminal)

    return plan


def _show_run(events: Any, view: RunView) -> None:
    try:
        for event in events:
            view.show(event)
    except (Interrupted, KeyboardInterrupt):
        view.close()
        raise typer.Exit(_INTERRUPTED) from None
    except TokencliError:
        view.abandon()
        raise
    view.close()
    if view.done and view.done.finish_reason == "cancelled":
        raise typer.Exit(_INTERRUPTED)


def _prompt(terminal: Terminal, file: Path | None, argument: str | None) -> str:
    """The prompt's parts, joined by a blank line: file, piped stdin, argument. Raises UsageError for an unreadable file."""
    parts = [_read(file) if file else None, terminal.piped_text(), argument]
    return "\n\n".join(part.strip("\n") for part in parts if part and part.strip())


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"the prompt file {file} cannot be read: {error.strerror}", "check the path") from None

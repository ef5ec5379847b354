"""`tokencli models ...`: parses, and hands over to the app. No decisions."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tokencli.cli import options
from tokencli.cli.follow import follow
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Progress
from tokencli.errors import Interrupted

if TYPE_CHECKING:
    from tokencli.app import World
    from tokencli.core import Event

T = TypeVar("T")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The alias to give.")]
Target = Annotated[str, typer.Argument(metavar="MODEL", help="hf:ORG/REPO[:QUANT], or a path to a .gguf or a folder.")]
Verify = Annotated[bool, typer.Option("--verify", help="Read the whole file and compare its hash with the hub's.")]


def models_app(terminal: Terminal) -> typer.Typer:
    app = typer.Typer(
        name="models", help="What can be run here: list, show, pull, rm, add.", no_args_is_help=True, rich_markup_mode=None
    )
    for name, make in (("list", _list), ("show", _show), ("pull", _pull), ("rm", _rm), ("add", _add)):
        app.command(name)(make(terminal))
    return app


def _list(terminal: Terminal) -> Callable[..., None]:
    def list_models(machine: options.Machine = None, as_json: options.Json = False) -> None:
        """The catalogue and what is downloaded, the best for this machine first; nothing is asked of the hub."""
        from tokencli.app import World, ranking
        from tokencli.cli import models_view as view

        lines = ranking.ranked(World(), machine)
        if as_json:
            terminal.stdout.write(view.list_json(lines) + "\n")
        else:
            view.show_list(lines, terminal)

    return list_models


def _show(terminal: Terminal) -> Callable[..., None]:
    def show(model: options.Model, quant: options.Quant = None, verify: Verify = False, as_json: options.Json = False) -> None:
        """One model in detail, from its header; its weights are not downloaded."""
        from tokencli.app import World, models
        from tokencli.cli import models_view as view

        found = _followed(models.details(model, World(), quant, verify), Progress(terminal, quiet=as_json))
        if as_json:
            terminal.stdout.write(view.details_json(found) + "\n")
        else:
            view.show_details(found, terminal)

    return show


def _pull(terminal: Terminal) -> Callable[..., None]:
    def pull(
        model: options.Model,
        quant: options.Quant = None,
        yes: options.Yes = False,
        as_json: options.Json = False,
        quiet: options.Quiet = False,
    ) -> None:
        """Download a model of the hub, or bring it up to date; it then runs without a network."""
        from tokencli.app import models
        from tokencli.cli import models_view as view

        found = _followed(models.pull(model, _world(terminal, yes), quant), Progress(terminal, quiet=quiet or as_json))
        terminal.stdout.write((view.model_json(found) if as_json else found.paths[0]) + "\n")

    return pull


def _rm(terminal: Terminal) -> Callable[..., None]:
    def rm(model: options.Model, quant: options.Quant = None) -> None:
        """Take a downloaded model off the disk; what other revisions share stays."""
        from tokencli.app import World, models
        from tokencli.plan.quants import size

        terminal.stderr.write(f"{size(models.remove(model, World(), quant))} freed\n")

    return rm


def _add(terminal: Terminal) -> Callable[..., None]:
    def add(name: Name, model: Target, quant: options.Quant = None) -> None:
        """Give a model a name of your own."""
        from tokencli.app import World, models

        file = models.add(name, model, World(), quant)
        terminal.stderr.write(f"{name} is written to {file}; run it with: tokencli run {name}\n")

    return add


def _world(terminal: Terminal, yes: bool) -> "World":
    from tokencli.app import World

    return World(confirm=lambda what: terminal.confirm(what, yes))


def _followed(steps: "Generator[Event, None, T]", progress: Progress) -> T:
    """The result of the steps, what they tell being shown on the way."""
    try:
        return follow(steps, progress.show, progress.clear)
    except KeyboardInterrupt:  # anywhere but in the download, which says it itself
        raise Interrupted("interrupted", "the same command goes on where it stopped") from None

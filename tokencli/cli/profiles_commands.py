"""`tokencli profiles ...`: parses, and hands over to the app. No decisions."""

from collections.abc import Callable
from typing import Annotated

import typer

from tokencli.cli import options
from tokencli.cli.terminal import Terminal

Name = Annotated[str, typer.Argument(metavar="NAME", help="A profile, as profiles list names it.")]


def profiles_app(terminal: Terminal) -> typer.Typer:
    app = typer.Typer(
        name="profiles", help="What is used where nobody says otherwise: list, show.", no_args_is_help=True, rich_markup_mode=None
    )
    app.command("list")(_list(terminal))
    app.command("show")(_show(terminal))
    return app


def _list(terminal: Terminal) -> Callable[..., None]:
    def list_profiles(machine: options.Machine = None, as_json: options.Json = False) -> None:
        """The profiles, the one that is used on this machine first."""
        from tokencli.app import World, profiles
        from tokencli.cli import profiles_view as view

        found = profiles.listed(World(), machine)
        terminal.stdout.write(view.list_json(found) if as_json else view.list_text(found))
        terminal.stdout.flush()

    return list_profiles


def _show(terminal: Terminal) -> Callable[..., None]:
    def show(name: Name, machine: options.Machine = None, as_json: options.Json = False) -> None:
        """One profile: each value with its reason, and what of it is for a device of this machine."""
        from tokencli.app import World, profiles
        from tokencli.cli import profiles_view as view

        found = profiles.shown(name, World(), machine)
        terminal.stdout.write(view.show_json(found) if as_json else view.show_text(found))
        terminal.stdout.flush()

    return show

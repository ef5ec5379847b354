"""README and README.zh-CN say what the command line has, and point at files that exist."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokencli.cli import commands
from tokencli.cli.chat_commands import COMMANDS
from tokencli.cli.terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]


def every_command(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Commands and those below them, by what is typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def every_option() -> set[str]:
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO(), {})
    command = commands.application(terminal)
    parameters = [parameter for each in (command, *(each for _, each in every_command(command))) for parameter in each.params]
    return {name for parameter in parameters for name in parameter.opts if name.startswith("--")} - {"--help"}


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_every_option_stands_in_the_readme_and_no_other(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text)) - {"--system-packages", "--help"}
    assert named == every_option()


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md"])
def test_links_and_scripts_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    scripts = re.findall(r"scripts/\w+(?:\.py)?", text)
    assert [name for name in {*links, *scripts} if not (ROOT / name).exists()] == []


def test_every_command_stands_in_both_readmes() -> None:
    command = commands.application(Terminal(io.StringIO(), io.StringIO(), io.StringIO(), {}))
    for page in ("README.md", "README.zh-CN.md"):
        text = (ROOT / page).read_text("utf-8")
        assert [name for name, _ in every_command(command) if f"tokencli {name}" not in text] == []


def test_every_command_of_the_chat_stands_in_both_readmes() -> None:
    for page in ("README.md", "README.zh-CN.md"):
        text = (ROOT / page).read_text("utf-8")
        assert [each.name for each in COMMANDS if f"`/{each.name}" not in text] == []

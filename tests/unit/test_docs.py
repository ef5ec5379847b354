"""README and README.zh-CN say what the command line has, and point at files that exist."""

import re
from pathlib import Path

import pytest
import typer.main

from tokencli.cli import commands, options
from tokencli.cli.terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]


def run_options() -> set[str]:
    import io

    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO(), {})
    command = commands.application(terminal)
    return {name for parameter in command.commands["run"].params for name in parameter.opts if name.startswith("--")} - {"--help"}


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_every_option_stands_in_the_readme_and_no_other(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text)) - {"--system-packages", "--help"}
    assert named == run_options()


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md"])
def test_links_and_scripts_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    scripts = re.findall(r"scripts/\w+(?:\.py)?", text)
    assert [name for name in {*links, *scripts} if not (ROOT / name).exists()] == []


def test_the_limits_in_the_help_are_those_that_are_checked() -> None:
    assert options.draft_tokens("64") == options.MOST_DRAFT_TOKENS
    assert typer.main.get_command is not None

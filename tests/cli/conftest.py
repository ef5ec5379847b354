"""Runs the real command in a process of its own, as a user does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Tokencli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "tokencli"]


@pytest.fixture
def tokencli(tmp_path: Path) -> Tokencli:
    """Runs `tokencli ARGUMENTS`; stdin is empty unless `input` is given; the user's folders are the test's own."""

    def run(*arguments: str, timeout: float = 180, **options: object) -> subprocess.CompletedProcess[str]:
        folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / name) for name in ("cache", "data", "config")}
        environment = {**os.environ, **folders, **options.pop("env", {})}
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            env=environment,
            check=False,
            **options,
        )

    return run


def one_error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The single line that a failure prints on stderr; stdout stays empty."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line

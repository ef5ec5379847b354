"""Two real commands at once on one memory: the second sees what the first holds and plans with the rest."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Tokencli
from tests.memory_group import join, memory_group

MIB = 1 << 20
LARGE = ["--context", "30000", "--kv-type", "f16", "--threads", "1", "--gpu-layers", "0"]  # 660 MiB of cache


@pytest.fixture
def group() -> Iterator[Path]:
    with memory_group(1400 * MIB) as folder:
        yield folder


@pytest.fixture
def first(group: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A chat that waits for its first message."""
    folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / "first" / name) for name in ("cache", "data", "config")}
    with subprocess.Popen(
        [*COMMAND, "chat", "smollm2-135m", *LARGE, "--max-tokens", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **folders},
        preexec_fn=lambda: join(group),
        text=True,
    ) as process:
        yield process
        process.kill()


def test_the_second_plans_around_the_first(tokencli: Tokencli, first: subprocess.Popen[str], group: Path) -> None:
    def second(*arguments: str) -> tuple[int, dict]:
        done = tokencli(*arguments, "--json", preexec_fn=lambda: join(group))
        return done.returncode, json.loads(done.stdout)

    assert first.stdin
    assert first.stdout
    first.stdin.write("Hello\n")
    first.stdin.flush()
    assert first.stdout.readline(), "it has loaded and answered"
    code, refused = second("plan", "smollm2-135m", *LARGE)
    assert (code, refused["error"]["code"]) == (3, 3)
    assert "more than may be used here" in refused["error"]["what"]
    code, found = second("run", "smollm2-135m", "Hello", "--max-tokens", "2", "--threads", "1")
    assert code == 0
    assert found["text"]
    assert first.poll() is None
    _, beside = second("plan", "smollm2-135m", "--threads", "1")
    first.stdin.close()
    first.wait(30)
    _, alone = second("plan", "smollm2-135m", "--threads", "1")
    budgets = [plan["plan"]["devices"][0]["budget"] for plan in (beside, alone)]
    assert budgets[1] - budgets[0] > 500 * MIB
    assert second("plan", "smollm2-135m", *LARGE)[0] == 0, "what was refused is there again"

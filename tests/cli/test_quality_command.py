"""`tokencli bench --quality` as a user runs it: JSON, the table, the options, Ctrl-C, and the plan that knows of it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import tiny_models
from tests.cli.conftest import COMMAND, Tokencli, one_error_line

OPTIONS = ("--quality", "--threads", "1", "--device", "cpu")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name, weights in (("whole", "F16"), ("small", "Q8_0")):
        tiny_models.write(folder / f"{name}.gguf", weight_type=weights)
    return folder


def test_the_shipped_text_is_read_by_both_and_the_plan_knows_the_loss(tokencli: Tokencli, models: Path) -> None:
    small = str(models / "small.gguf")
    result = tokencli("bench", small, *OPTIONS, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["text"], found["chunk_tokens"], found["interrupted"], found["remembered"]) == (
        "winter-animals.txt",
        512,
        False,
        True,
    )
    assert found["chunks"] >= 8
    assert found["tokens"] == 255 * found["chunks"]
    assert (found["plan"]["model"]["quant"], found["reference"]["model"]["quant"]) == ("Q8_0", "F16")
    figure = found["quality"]["kl_divergence_mean"]
    assert 0 < figure["low"] < figure["value"] < figure["high"]
    plan = tokencli("plan", small, "--threads", "1", "--device", "cpu")
    assert "measured on" in plan.stdout + plan.stderr


def test_a_person_sees_a_table_of_a_file_against_itself(tokencli: Tokencli, models: Path) -> None:
    whole = str(models / "whole.gguf")
    result = tokencli("bench", whole, *OPTIONS, "--against", whole, "--context", "256")
    assert result.returncode == 0, result.stderr
    assert "mean KL divergence        0 nats (0 to 0)" in result.stdout
    assert "same most probable token  100.0 % (100.0 to 100.0)" in result.stdout
    assert "remembered" not in result.stdout


def test_its_options_are_refused_without_it(tokencli: Tokencli, models: Path) -> None:
    result = tokencli("bench", str(models / "small.gguf"), "--against", "F16")
    assert result.returncode == 2
    assert one_error_line(result).endswith("add --quality, or leave them out")
    drafted = tokencli("bench", str(models / "small.gguf"), *OPTIONS, "--draft", "ngram")
    assert drafted.returncode == 2
    assert one_error_line(drafted).endswith("leave --draft and --compare out")
    missing = tokencli("bench", str(models / "small.gguf"), *OPTIONS, "--text", "nowhere.txt")
    assert missing.returncode == 2
    assert "nowhere.txt cannot be read" in one_error_line(missing)


def test_an_interruption_keeps_what_was_read(models: Path, tmp_path: Path) -> None:
    """A text that takes long; the second Ctrl-C is never needed."""
    text = tmp_path / "long.txt"
    text.write_text("".join(f"In the year {number} the ponds were firmly frozen. " for number in range(100_000)))
    environment = {**os.environ, **{f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "DATA", "CONFIG")}}
    command = [*COMMAND, "bench", str(models / "whole.gguf"), *OPTIONS, "--text", str(text), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(8)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(out)
    assert found["interrupted"]
    assert found["chunks"] > 0
    assert found["quality"]["perplexity"]["value"] > 1

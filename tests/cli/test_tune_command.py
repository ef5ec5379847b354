"""`tokencli tune` on a tiny model, and what `run` and `plan` make of what it has written."""

import dataclasses
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests import tiny_models
from tests.cli.conftest import COMMAND, Tokencli, one_error_line
from tests.unit.test_tuned_file import ENTRY
from tokencli.app import World
from tokencli.app.remembered import this_computer
from tokencli.core import Calibration
from tokencli.engine.client import Engine
from tokencli.world import gguf_file, tuned
from tokencli.world.calibrated import Calibrated, CalibrationFile
from tokencli.world.tuned import Entry, TunedFile

SHORT = ("--max-tokens", "4", "--temperature", "0")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_models.write(tmp_path / "m.gguf", weight_type="Q8_0"))


@pytest.fixture
def file(tmp_path: Path) -> TunedFile:
    """Where the command, whose folders are the test's own, looks for tuned settings."""
    return TunedFile(tmp_path / "config" / "tokencli" / "tuned.toml")


@pytest.fixture
def entry(model: str) -> Entry:
    with Engine() as engine:
        devices = engine.devices()
    return dataclasses.replace(
        ENTRY,
        identity=gguf_file.identity(Path(model)),
        build=tuned.this_build(),
        computer=this_computer(World()),
        devices=tuned.stamp(devices),
        settings={"threads": 1, "ubatch": 128, "draft": "ngram", "draft_tokens": 8},
    )


def test_json_is_one_object_and_the_time_is_kept(tokencli: Tokencli, model: str, file: TunedFile) -> None:
    result = tokencli("tune", model, "--budget", "3s", "--threads", "1", "--device", "cpu", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found) >= {"goal", "matrix", "before", "after", "changed", "outcome", "drifted", "interrupted", "saved"}
    assert found["outcome"]["trials"] > 3
    assert (found["saved"] is not None) == file.file.exists() == found["outcome"]["confirmed"]
    assert result.stderr == ""


def test_a_dry_run_shows_what_would_be_tried(tokencli: Tokencli, model: str) -> None:
    result = tokencli("tune", model, "--dry-run", "--budget", "5m", "--device", "cpu")
    assert "in 5.0 min to try" in result.stdout.splitlines()[0]
    assert any(line.strip() == "OMP_WAIT_POLICY: default, passive" for line in result.stdout.splitlines())


def test_run_and_plan_use_what_was_tuned_and_say_so(tokencli: Tokencli, model: str, file: TunedFile, entry: Entry) -> None:
    before = json.loads(tokencli("run", model, "hi", *SHORT, "--json", "--device", "cpu").stdout)
    file.put(entry)
    for command in (("run", model, "hi", *SHORT), ("plan", model)):
        result = tokencli(*command, "--json", "--device", "cpu")
        plan = json.loads(result.stdout)["plan"]
        assert (plan["threads"], plan["ubatch"], plan["draft"]["kind"], plan["draft"]["max_tokens"]) == (1, 128, "ngram", 8)
        assert (plan["origins"]["threads"], plan["origins"]["draft"]) == ("tuned", "tuned")
        assert [note for note in plan["notes"] if note.startswith("tuned on 2026-12-01 for turn")]
    after = tokencli("run", model, "hi", *SHORT, "--device", "cpu")
    assert after.stdout.strip() == before["text"].strip(), "the same text"
    assert after.stderr.count("tuned") == 1
    flagged = json.loads(tokencli("plan", model, "--threads", "2", "--draft", "off", "--json", "--device", "cpu").stdout)["plan"]
    assert (flagged["threads"], flagged["draft"], flagged["origins"]["threads"]) == (2, None, "flag")


def test_a_tuned_draft_model_is_loaded_along(
    tokencli: Tokencli, tmp_path: Path, model: str, file: TunedFile, entry: Entry
) -> None:
    draft = str(tiny_models.write(tmp_path / "d.gguf", weight_type="Q8_0"))
    file.put(dataclasses.replace(entry, settings={"draft": draft, "draft_tokens": 2}, environment={}))
    plan = json.loads(tokencli("run", model, "hi", *SHORT, "--json", "--device", "cpu").stdout)["plan"]
    assert (plan["draft"]["kind"], plan["draft"]["file"], plan["draft"]["max_tokens"]) == ("model", draft, 2)
    Path(draft).unlink()
    gone = tokencli("run", model, "hi", *SHORT, "--device", "cpu")
    assert gone.returncode == 0
    assert "without the draft: there is no file" in gone.stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"build": "0.3.1"}, "llama-cpp-python was 0.3.1 then"),
        ({"computer": "a Cray, 8 cores"}, "it was measured on a Cray, 8 cores"),
        ({"devices": ("CUDA0 NVIDIA GeForce GTX 1660",)}, "the devices were CUDA0 NVIDIA GeForce GTX 1660 then"),
    ],
)
def test_what_is_stale_is_one_line(
    tokencli: Tokencli, model: str, file: TunedFile, entry: Entry, damage: dict[str, object], says: str
) -> None:
    file.put(dataclasses.replace(entry, **damage))
    result = tokencli("run", model, "hi", *SHORT, "--device", "cpu")
    assert result.returncode == 0
    (line,) = (line for line in result.stderr.splitlines() if "tuned" in line)
    assert says in line
    assert "not used here" in tokencli("tune", "--list").stdout or "devices" in damage


def test_what_is_corrupted_is_one_line(tokencli: Tokencli, model: str, file: TunedFile) -> None:
    file.file.parent.mkdir(parents=True)
    file.file.write_text("[[tuned]\nthreads = ")
    result = tokencli("run", model, "hi", *SHORT, "--device", "cpu")
    assert result.returncode == 0
    (line,) = (line for line in result.stderr.splitlines() if "tuned" in line)
    assert "cannot be read" in line


def test_what_is_of_another_model_is_not_used(tokencli: Tokencli, model: str, file: TunedFile, entry: Entry) -> None:
    file.put(dataclasses.replace(entry, identity="another"))
    assert "tuned" not in tokencli("run", model, "hi", *SHORT).stderr


def test_entries_are_listed_and_forgotten(tokencli: Tokencli, model: str, file: TunedFile, entry: Entry) -> None:
    file.put(entry)
    assert tokencli("tune", "--list").stdout.startswith("smollm2-135m 2026-12-01 CPU turn 1.50 times as fast: threads 1")
    assert json.loads(tokencli("tune", "--list", "--json").stdout)["tuned"][0]["not_used"] is None
    assert tokencli("tune", "--forget", model).stderr == "1 forgotten\n"
    again = tokencli("tune", "--forget", model)
    assert again.returncode == 2
    assert "nothing is remembered of" in one_error_line(again)
    assert tokencli("tune", "--list").stdout == ""


@pytest.fixture
def calibrated(entry: Entry, file: TunedFile) -> CalibrationFile:
    """As if the CPU had been measured here with one thread."""
    found = CalibrationFile(file.file.with_name("calibrated.toml"))
    measured = Calibration("CPU", 1, {"Q8_0": 20e9}, 5e-5)
    found.put([Calibrated(entry.build, entry.computer, entry.devices, "2026-12-01", measured)])
    return found


ONE = ("--device", "cpu", "--threads", "1")


def test_plan_says_calibrated_where_this_computer_was_measured(
    tokencli: Tokencli, model: str, calibrated: CalibrationFile
) -> None:
    assert json.loads(tokencli("plan", model, *ONE, "--json").stdout)["plan"]["predicted"]["origin"] == "calibrated"
    assert "calibrated: decode about" in tokencli("plan", model, *ONE).stdout
    assert "calibration 2026-12-01 CPU, 1 thread: Q8_0 20.0 GB/s, 50 us a layer" in tokencli("tune", "--list").stdout
    assert json.loads(tokencli("tune", "--list", "--json").stdout)["calibrated"][0]["calibration"]["threads"] == 1
    assert tokencli("tune", "--forget", "calibration").stderr == "1 forgotten\n"
    assert json.loads(tokencli("plan", model, *ONE, "--json").stdout)["plan"]["predicted"]["origin"] is None


def test_a_calibration_that_cannot_be_read_is_one_line(tokencli: Tokencli, model: str, calibrated: CalibrationFile) -> None:
    calibrated.file.write_text("[[calibrated]\n")
    result = tokencli("run", model, "hi", *SHORT, *ONE)
    assert result.returncode == 0
    (line,) = (line for line in result.stderr.splitlines() if "calibration" in line)
    assert "cannot be read" in line


def test_a_model_is_needed(tokencli: Tokencli) -> None:
    result = tokencli("tune")
    assert result.returncode == 2
    assert "tokencli tune MODEL" in one_error_line(result)


def test_an_interruption_is_130_with_the_best_so_far(tmp_path: Path, model: str) -> None:
    command = [*COMMAND, "tune", model, "--budget", "300s", "--threads", "1", "--device", "cpu"]
    folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / name) for name in ("cache", "data", "config")}
    environment = {**os.environ, **folders}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stderr
        assert any(line.startswith("warm-up") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"[1-9]\d* trials in \d+ s, interrupted", out)

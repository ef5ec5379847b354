"""`tokencli bench` on a tiny model: exact lengths, pairs with a draft, what Ctrl-C keeps."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests import tiny_models
from tests.cli.conftest import COMMAND, Tokencli, one_error_line

SHORT = ("--prompt-tokens", "64", "--tokens", "16", "--threads", "1")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_models.write(tmp_path / "m.gguf", weight_type="Q8_0", eog=True))


def test_every_answer_has_the_lengths_asked_for(tokencli: Tokencli, model: str) -> None:
    result = tokencli("bench", model, *SHORT, "--runs", "3", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["prompt_tokens"] == 64
    assert [(run["arm"], run["stats"]["prompt_tokens"], run["stats"]["tokens"]) for run in found["runs"]] == [
        ("plain", 64, 16)
    ] * 3
    assert all(run["stats"]["cached_tokens"] == 0 for run in found["runs"])
    assert found["speedup"] is None


def test_with_a_draft_both_ways_are_measured_in_turn(tokencli: Tokencli, tmp_path: Path, model: str) -> None:
    draft = str(tiny_models.write(tmp_path / "d.gguf", weight_type="Q8_0", eog=True))
    found = json.loads(tokencli("bench", model, *SHORT, "--runs", "2", "--draft", draft, "--draft-tokens", "3", "--json").stdout)
    assert [run["arm"] for run in found["runs"]] == ["plain", "draft", "draft", "plain"]
    drafted = {run["arm"]: run["stats"]["drafted"] for run in found["runs"]}
    assert drafted["plain"] == 0
    assert drafted["draft"] > 0
    assert found["speedup"]["pairs"] == 2


def test_an_earlier_report_is_compared_with(tokencli: Tokencli, tmp_path: Path, model: str) -> None:
    old = tmp_path / "old.json"
    old.write_text(tokencli("bench", model, *SHORT, "--runs", "1", "--json").stdout)
    result = tokencli("bench", model, *SHORT, "--runs", "1", "--compare", str(old))
    assert "plain decode tokens/s" in result.stdout
    assert result.stdout.rstrip().endswith("too few to tell")
    other = tokencli("bench", model, "--prompt-tokens", "50", "--tokens", "16", "--runs", "1", "--compare", str(old))
    assert other.returncode == 2
    assert one_error_line(other).endswith("--anyway compares them nevertheless")
    assert tokencli("bench", model, *SHORT, "--runs", "1", "--tokens", "8", "--compare", str(old), "--anyway").returncode == 0


def test_llama_benchs_tests_are_measured_at_the_depths_asked_for(tokencli: Tokencli, model: str) -> None:
    lengths = ("--prompt-tokens", "32", "--tokens", "8", "--threads", "1", "--context", "256", "--runs", "2")
    found = json.loads(tokencli("bench", model, *lengths, "--depths", "100,0", "--json").stdout)
    assert [(each["test"], each["depth"], each["tokens_per_second"]["count"]) for each in found["throughput"]] == [
        ("pp32", 0, 2), ("tg8", 0, 2), ("pp32 @ d100", 100, 2), ("tg8 @ d100", 100, 2)
    ]  # fmt: skip
    usual = json.loads(tokencli("bench", model, *lengths, "--format", "json").stdout)
    assert [each["test"] for each in usual["throughput"]] == ["pp32", "tg8"], "2048 does not fit"
    assert json.loads(tokencli("bench", model, *lengths, "--depths", "none", "--json").stdout)["throughput"] == []
    deep = tokencli("bench", model, *lengths, "--depths", "4000")
    assert deep.returncode == 3
    assert one_error_line(deep).endswith("use --context 4032")


@pytest.mark.parametrize(("form", "has"), [("csv", ",plain,decode_tokens_per_second,"), ("md", "| decode tokens/s |")])
def test_a_table_can_be_had_in_other_forms(tokencli: Tokencli, model: str, form: str, has: str) -> None:
    result = tokencli("bench", model, *SHORT, "--runs", "1", "--format", form)
    assert result.returncode == 0
    assert has in result.stdout
    assert "pp64" in result.stdout


def test_a_person_sees_a_table(tokencli: Tokencli, model: str) -> None:
    result = tokencli("bench", model, *SHORT, "--runs", "1")
    assert "64 tokens of prompt, 16 of answer" in result.stdout
    assert "decode tokens/s" in result.stdout
    assert result.stderr == ""


def test_what_does_not_fit_the_context_is_refused_with_the_context_that_would(tokencli: Tokencli, model: str) -> None:
    result = tokencli("bench", model, "--prompt-tokens", "500", "--tokens", "100", "--context", "512")
    assert result.returncode == 3
    assert one_error_line(result).endswith("use --context 600")


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    endless = str(tiny_models.scripted(tmp_path / "endless.gguf", [b"word "], end=False, context=1 << 20))
    lengths = ("--prompt-tokens", "64", "--tokens", "2000", "--threads", "1")
    command = [*COMMAND, "bench", endless, *lengths, "--runs", "1000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(8)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode == 130
    assert found["interrupted"]
    assert 0 < len(found["runs"]) < 1000


def test_drafts_are_compared_on_prompts_of_the_users_own(tokencli: Tokencli, tmp_path: Path, model: str) -> None:
    prompts = tmp_path / "code.txt"
    prompts.write_text("def a\n---\ndef b\n")
    lengths = ("--tokens", "8", "--runs", "1", "--threads", "1")
    found = json.loads(tokencli("bench", model, "--prompts", str(prompts), *lengths, "--json").stdout)
    assert found["arms"] == ["off", "lookup"]
    assert {each["arm"] for each in found["answers"]} >= {"off"}
    assert [each["kind"] for each in found["advice"]] == ["code", None]
    shown = tokencli("bench", model, "--prompts", str(prompts), *lengths)
    assert "off, lookup on 2 prompts, answers of 8 tokens" in shown.stdout
    assert shown.stderr == ""
    refused = tokencli("bench", model, "--prompts", str(prompts), "--depths", "0")
    assert refused.returncode == 2
    assert one_error_line(refused).endswith("leave out --prompts or --depths")

"""`tokencli run --draft`: same text, told acceptance, and every draft that cannot be used is one line and the answer."""

import json
from pathlib import Path

import pytest

from tests import tiny_models
from tests.cli.conftest import Tokencli
from tests.cli.test_run import run_in_terminal

GREEDY = ("--temperature", "0", "--max-tokens", "24")


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tiny_models.write(tmp_path / "target.gguf", weight_type="Q8_0", embedding=128))


def notes(stderr: str) -> list[str]:
    """All but what other programs on this computer are to blame for."""
    return [line for line in stderr.splitlines() if line.startswith("note: ") and "other programs keep" not in line]


def test_the_text_is_that_of_plain_decoding_and_the_acceptance_is_told(tokencli: Tokencli, tmp_path: Path, target: str) -> None:
    draft = str(tiny_models.write(tmp_path / "draft.gguf", weight_type="Q8_0"))
    plain = tokencli("run", target, "hello", *GREEDY)
    drafted = tokencli("run", target, "hello", *GREEDY, "--draft", draft, "--draft-tokens", "3")
    assert drafted.stdout == plain.stdout
    assert " accepted (" in drafted.stderr
    assert " accepted (" not in plain.stderr
    answer = json.loads(tokencli("run", target, "hello", *GREEDY, "--draft", draft, "--json").stdout)
    planned = {"kind": "model", "file": draft, "device": None, "max_tokens": 8, "min_probability": 0.0, "adaptive": True}
    assert answer["plan"]["draft"] == planned
    answer = json.loads(tokencli("run", target, "hello", *GREEDY, "--draft", draft, "--draft-tokens", "3", "--json").stdout)
    assert answer["stats"]["drafted"] > 0, "a depth of its own may be 0 on a busy machine; one that was asked for is not"
    assert answer["stats"]["acceptance"] == answer["stats"]["accepted"] / answer["stats"]["drafted"]


def test_lookup_needs_no_second_model(tokencli: Tokencli, tmp_path: Path) -> None:
    model = str(tiny_models.scripted(tmp_path / "m.gguf", [b"one ", b"two ", b"three "], end=False))
    drafts = (("off",), ("ngram", "--draft-tokens", "4"))
    plain, drafted = (tokencli("run", model, "hi", *GREEDY, "--json", "--draft", *draft).stdout for draft in drafts)
    assert json.loads(plain)["text"] == json.loads(drafted)["text"]
    assert json.loads(drafted)["stats"]["acceptance"] == 1
    assert json.loads(drafted)["stats"]["tokens_per_emission"] > 2


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "without the draft: there is no file"),
        ("broken", "is cut short"),
        ("larger", "is larger than the model it would draft for"),
        ("other vocabulary", "without the draft: its vocabulary is not the model's: "),
        ("recurrent", "a recurrent model cannot take back what the target refuses"),
    ],
)
def test_a_draft_that_cannot_be_used_is_one_line_and_the_answer(
    tokencli: Tokencli, tmp_path: Path, target: str, kind: str, says: str
) -> None:
    draft = tmp_path / "draft.gguf"
    if kind == "broken":
        whole = tiny_models.write(draft).read_bytes()
        draft.write_bytes(whole[: len(whole) // 2])
    elif kind == "larger":
        tiny_models.write(draft, embedding=256)
    elif kind == "other vocabulary":
        tiny_models.write(draft, weight_type="Q8_0", extra={"tokenizer.ggml.bos_token_id": 3})
    elif kind == "recurrent":
        tiny_models.write(draft, "hybrid", weight_type="Q8_0")
    plain = tokencli("run", target, "hello", *GREEDY)
    result = tokencli("run", target, "hello", *GREEDY, "--draft", str(draft))
    (note,) = notes(result.stderr)
    assert says in note
    assert (result.returncode, result.stdout) == (0, plain.stdout)
    answer = json.loads(tokencli("run", target, "hello", *GREEDY, "--draft", str(draft), "--json").stdout)
    assert answer["plan"]["draft"] is None
    assert any(says in each for each in answer["plan"]["notes"])


@pytest.mark.parametrize(("extra", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_show_draft_colours_what_the_draft_guessed(tmp_path: Path, extra: dict[str, str], coloured: bool) -> None:
    model = str(tiny_models.scripted(tmp_path / "m.gguf", [b"a ", b"b ", b"c "], end=False))
    options = ("--draft", "ngram", "--draft-tokens", "4", "--show-draft", *GREEDY)
    shown = run_in_terminal(model, "hi", *options, environment={"TERM": "xterm", **extra})
    assert ("\x1b[32m" in shown) == coloured
    assert "a b c a b c" in shown.replace("\x1b[32m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("value", ["0", "65", "many", "-1"])
def test_an_impossible_depth_is_refused(tokencli: Tokencli, target: str, value: str) -> None:
    result = tokencli("run", target, "hi", "--draft", "ngram", "--draft-tokens", value)
    assert result.returncode == 2
    assert f"--draft-tokens {value} is out of range" in result.stderr


def test_what_an_answer_taught_is_there_in_the_next_run(tokencli: Tokencli, tmp_path: Path, target: str) -> None:
    options = ("--draft", str(tiny_models.write(tmp_path / "draft.gguf", weight_type="Q8_0")), *GREEDY)
    first = tokencli("run", target, "hello", *options)
    (file,) = (tmp_path / "cache").rglob("paces.json")
    (before,) = json.loads(file.read_text()).values()
    assert tokencli("run", target, "hello", *options).stdout == first.stdout
    (after,) = json.loads(file.read_text()).values()
    assert after["rounds"] > before["rounds"], "the same key: the second run went on from the first"
    file.write_text('{"damaged')
    assert tokencli("run", target, "hello", *options).stdout == first.stdout


def test_stats_show_how_the_draft_did(tokencli: Tokencli, tmp_path: Path, target: str) -> None:
    repeating = str(tiny_models.scripted(tmp_path / "m.gguf", [b"one ", b"two ", b"three "], end=False))
    shown = tokencli("run", repeating, "hi", "--draft", "ngram", "--draft-tokens", "4", "--stats", *GREEDY).stderr
    assert "guesses at once" in shown
    assert "draft 0 %, verify " in shown
    assert "draft  nothing was guessed" in tokencli("run", target, "hello", "--stats", *GREEDY).stderr


def test_structured_output(tokencli: Tokencli, tmp_path: Path, target: str) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    schema.write_text('{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}')
    grammar.write_text('root ::= "yes" | "no"')
    plain = tokencli("run", target, "hello", "--json-schema", str(schema), *GREEDY)
    assert isinstance(json.loads(plain.stdout)["ok"], bool)
    assert tokencli("run", target, "hello", "--json-schema", str(schema), "--draft", "ngram", *GREEDY).stdout == plain.stdout
    assert tokencli("run", target, "hello", "--grammar", str(grammar), *GREEDY).stdout in ("yes\n", "no\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--json-schema", "SCHEMA"), "the schema has 'minimum'"),
        (("--json-schema", "nowhere.json"), "cannot be read"),
        (("--grammar", "SCHEMA"), "llama.cpp cannot read the grammar"),
        (("--grammar", "SCHEMA", "--json-schema", "SCHEMA"), "leave one of them out"),
        (("--grammar", "SCHEMA", "--session", "s"), "leave out --session"),
    ],
)
def test_structured_output_that_cannot_be_is_a_usage_error(
    tokencli: Tokencli, tmp_path: Path, target: str, options: tuple[str, ...], says: str
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "integer", "minimum": 3}')
    given = [str(tmp_path / "schema.json") if option == "SCHEMA" else option for option in options]
    result = tokencli("run", target, "hello", *given)
    assert result.returncode == 2
    assert says in result.stderr

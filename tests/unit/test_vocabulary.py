"""Which draft can serve which model: reports A4-05 (texts differ), A4-06 (only padding differs), A4-07 (no check at all)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.gguf_bytes import gguf
from tokencli.errors import BadModelFile, ModelNotFound
from tokencli.world.gguf_file import parse_header, read_header, vocabulary_difference

TEXTS = [f"token{number}" for number in range(500)]
PADDING = [f"[PAD{number}]" for number in range(500, 700)]

Save = Callable[..., Path]


def model(texts: list[str] | None = TEXTS, **tokenizer: object) -> bytes:
    """A model with these token texts; what is None is left out."""
    given = {"model": "gpt2", "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": False, "tokens": texts, **tokenizer}
    named = {f"tokenizer.ggml.{key}": value for key, value in given.items() if value is not None}
    return gguf({"general.architecture": "llama", "llama.block_count": 1, **named})


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(texts: list[str] | None = TEXTS, **tokenizer: object) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        path.write_bytes(model(texts, **tokenizer))
        return path

    return write


def both_ways(one: Path, other: Path) -> tuple[str | None, str | None]:
    return vocabulary_difference(one, other), vocabulary_difference(other, one)


def changed(number: int, text: str, texts: list[str] = TEXTS) -> list[str]:
    return [*texts[:number], text, *texts[number + 1 :]]


# Compatible


def test_a4_06_padding_does_not_matter(save: Save) -> None:
    assert both_ways(save(), save()) == (None, None)
    assert both_ways(save(), save(TEXTS + PADDING[:128])) == (None, None)


@pytest.mark.parametrize("number", range(5))
def test_the_first_five_texts_may_differ(save: Save, number: int) -> None:
    assert both_ways(save(), save(changed(number, "<another special token>"))) == (None, None)


def test_what_one_file_does_not_say_is_no_difference(save: Save) -> None:
    assert vocabulary_difference(save(), save(bos_token_id=None, eos_token_id=None, add_bos_token=None)) is None
    assert vocabulary_difference(save(), save(pre="qwen2")) is None
    assert vocabulary_difference(save(eos_token_id=2), save(eos_token_id=(1 << 32) - 1)) is None  # -1: not a token


@pytest.mark.parametrize(
    ("said", "unsaid"),
    [
        ({"add_bos_token": True}, {"model": "llama"}),
        ({"add_bos_token": True}, {"pre": "llama-bpe"}),
        ({"add_bos_token": False}, {"pre": "qwen2"}),
        ({"add_eos_token": False}, {"add_bos_token": False}),
        ({"add_bos_token": False, "model": "gemma4"}, {"model": "gemma4"}),  # llama.cpp adds it whatever the file says
    ],
)
def test_what_is_added_unsaid_counts_as_said(save: Save, said: dict, unsaid: dict) -> None:
    kind = {"model": unsaid.get("model", "gpt2")}
    assert both_ways(save(**kind | said), save(**{"add_bos_token": None} | unsaid)) == (None, None)


# Not compatible: said clearly, once


@pytest.mark.parametrize("number", [5, 250, 499])
def test_a4_05_one_text_differs(save: Save, number: int) -> None:
    expected = f"token {number} is 'token{number}' in one and 'foo' in the other"
    assert vocabulary_difference(save(), save(changed(number, "foo") + PADDING[:9])) == expected


def test_a4_05_texts_of_equal_length_and_texts_that_only_move_bytes(save: Save) -> None:
    assert "token 7 " in str(vocabulary_difference(save(), save(changed(7, "nekot7"))))
    moved = changed(8, "oken8", changed(7, "token7t"))
    assert both_ways(save(), save(moved)) == (
        "token 7 is 'token7' in one and 'token7t' in the other",
        "token 7 is 'token7t' in one and 'token7' in the other",
    )


def test_a_text_is_shown_in_a_line_of_its_own(save: Save) -> None:
    reason = vocabulary_difference(save(), save(changed(9, "a\n\x1b[31m" + "x" * 5000)))
    assert reason == f"token 9 is 'token9' in one and 'a\\n\\x1b[31m{'x' * 73}' in the other"


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        ({"model": "llama"}, "its type is gpt2 in one and llama in the other"),
        ({"model": None}, "its type is gpt2 in one and None in the other"),
        ({"bos_token_id": 3}, "the beginning-of-text token is 1 in one and 3 in the other"),
        ({"eos_token_id": 7}, "the end-of-text token is 2 in one and 7 in the other"),
        ({"add_bos_token": True}, "the beginning-of-text token is added to a prompt in one, not in the other"),
        (
            {"add_bos_token": None, "pre": "llama-bpe"},
            "the beginning-of-text token is added to a prompt in one, not in the other",
        ),
        ({"add_eos_token": True}, "the end-of-text token is added to a prompt in one, not in the other"),
        ({"texts": TEXTS + PADDING[:129]}, "there are 500 tokens in one and 629 in the other"),
        ({"texts": TEXTS[:371]}, "there are 500 tokens in one and 371 in the other"),
    ],
)
def test_a4_07_an_unrelated_draft_is_refused_with_one_reason(save: Save, tokenizer: dict, reason: str) -> None:
    assert vocabulary_difference(save(), save(**tokenizer)) == reason


def test_texts_that_are_not_there_cannot_be_compared(save: Save) -> None:
    bare = save(None)
    assert vocabulary_difference(bare, save(["a", "b", "c"])) == "the texts of the tokens are not in both files"
    assert vocabulary_difference(save(["a", "b", "c"]), save(["d", "e"])) is None  # the first five are not compared


def test_a_file_that_is_no_model_is_an_error(save: Save, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        vocabulary_difference(save(), tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(BadModelFile):
        vocabulary_difference(save(), tmp_path / "text.gguf")


# The vocabulary as a value, and its fingerprint


def fingerprint(texts: list[str]) -> str | None:
    raw = model(texts)
    return parse_header(raw, len(raw), "m.gguf").fingerprint


def test_a_vocabulary_is_what_the_file_says(save: Save) -> None:
    vocabulary = read_header(save(add_bos_token=True, eos_token_id=999)).vocabulary
    assert (vocabulary.size, vocabulary.type, vocabulary.bos, vocabulary.eos) == (500, "gpt2", 1, None)
    assert (vocabulary.add_bos, vocabulary.add_eos) == (True, None)


def test_the_fingerprint_is_of_all_texts_from_the_sixth_on() -> None:
    known = fingerprint(TEXTS)
    assert known == fingerprint(changed(4, "other")) == fingerprint(changed(0, "longer than before"))
    assert len({known, fingerprint(changed(5, "other")), fingerprint(changed(499, "other")), fingerprint(TEXTS[:-1])}) == 4
    assert fingerprint(["a", "b"]) == fingerprint(["c"]) == "e3b0c44298fc1c14"  # of nothing
    assert known
    assert len(known) == 16


def test_the_fingerprint_does_not_depend_on_what_else_the_file_holds() -> None:
    raw = model(TEXTS, zzz="more", merges=["a b"])
    assert parse_header(raw, len(raw), "other.gguf").fingerprint == fingerprint(TEXTS)

"""Structured output on the real llama.cpp: valid, and the same text with and without a draft."""

import json
from collections.abc import Callable

import pytest

from tests.engine.conftest import answer, ask, load, plan_for
from tests.unit.json_schemas import PERSON, SCHEMAS, is_valid
from tokencli.core import Draft, Model
from tokencli.engine.client import Engine
from tokencli.errors import UsageError

LONG = 200


@pytest.fixture(scope="module")
def engine(smollm2: Model) -> Engine:
    with Engine() as engine:
        load(engine, plan_for(smollm2))
        yield engine


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_is_valid_against_its_schema(engine: Engine, name: str, temperature: float) -> None:
    schema = SCHEMAS[name]
    wanted = ask("Tell me about Ann, in JSON.", temperature=temperature, max_tokens=LONG, json_schema=json.dumps(schema))
    text, _, done = answer(engine.generate(wanted))
    if done.finish_reason == "length":  # a small model may go on with digits or a map for long: what is there is a beginning
        assert name in ("a map", "a tree", "either", "a person")
        return
    assert is_valid(json.loads(text), schema), text


def test_a_grammar_is_kept_to(engine: Engine) -> None:
    text, _, done = answer(engine.generate(ask("Name a colour.", grammar='root ::= ("red" | "green") ", " [0-9]{3}')))
    assert done.finish_reason == "stop"
    colour, digits = text.split(", ")
    assert colour in ("red", "green")
    assert len(digits) == 3
    assert digits.isdecimal()


def test_a_grammar_far_from_what_the_model_would_say_is_kept_to(engine: Engine) -> None:
    """None of the likely tokens is allowed: the whole vocabulary is looked at."""
    text, _, done = answer(engine.generate(ask("Say hello.", grammar='root ::= "ẞ¶¤" "ẞ¶¤"')))
    assert (text, done.finish_reason) == ("ẞ¶¤ẞ¶¤", "stop")


@pytest.mark.parametrize("bad", ['root ::= "a" |||| (', 'start ::= "a"', ""])
def test_a_grammar_that_is_none_is_said(engine: Engine, bad: str) -> None:
    with pytest.raises(UsageError, match="cannot read the grammar"):
        list(engine.generate(ask("hi", grammar=bad)))
    assert answer(engine.generate(ask("hi", max_tokens=2)))[2].stats.tokens == 2, "and the engine goes on"


def same_with_every_draft(model: Model, drafts: list[Draft], tokens: int, **wanted: object) -> int:
    """How many drafted tokens stood in all."""
    requests = [ask("Ann", temperature=t, seed=s, max_tokens=tokens, **wanted) for t in (0, 0.8) for s in range(3)]
    texts, accepted = [], 0
    for draft in (None, *drafts):
        with Engine() as engine:
            load(engine, plan_for(model, draft=draft))
            found = [answer(engine.generate(request))[::2] for request in requests]
        texts.append([text for text, _ in found])
        accepted += sum(done.stats.accepted for _, done in found)
    assert all(each == texts[0] for each in texts)
    return accepted


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid"])
def test_the_text_is_the_same_with_and_without_a_draft(tiny: Callable[..., Model], kind: str) -> None:
    other = tiny("llama", noise=0.02) if kind == "llama" else tiny("llama", seed=99)
    drafts = [
        Draft("ngram", None, None, 4, 0.0),
        Draft("model", other.file, None, 4, 0.0),
        Draft("model", other.file, None, 8, 0.0, adaptive=True),
    ]
    same_with_every_draft(tiny(kind), drafts, 40, json_schema=json.dumps(PERSON))
    accepted = same_with_every_draft(tiny(kind), drafts, 40, grammar='root ::= ("ab" | "ba" | "abc")+')
    if kind == "llama":
        assert accepted > 0


def test_the_text_of_a_real_model_is_the_same_with_itself_as_draft(smollm2: Model) -> None:
    drafts = [Draft("model", smollm2.file, None, 4, 0.0), Draft("ngram", None, None, 8, 0.0, adaptive=True)]
    assert same_with_every_draft(smollm2, drafts, 40, json_schema=json.dumps(PERSON)) > 20

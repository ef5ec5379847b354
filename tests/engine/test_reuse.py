"""A conversation's later turns: what the memory has of the prompt is kept, in the worker and on disk, and the text is the same.

That the logits are a fresh prefill's is shown in test_rollback.py. Here only the first tokens are compared: a single token is
computed by another kernel than a batch, and a last bit may tip one of the quantised values after it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import answer, load, plan_for
from tokencli.core import Begun, Done, Draft, Message, Model, Plan, Request, Sampling
from tokencli.engine.client import Engine
from tokencli.errors import EngineError

KINDS = ["llama", "sliding", "hybrid", "experts"]
FIRST = Message("user", "The old harbour lies at the mouth of the river, where ships of every size find water enough.")
TOKENS = 40


def wanted(*messages: Message, seed: int = 1, **options: object) -> Request:
    options = {"max_tokens": TOKENS, "reuse": True, **options}
    return Request(messages, Sampling(temperature=0.8, seed=seed), **options)


def plan_of(model: Model, **changes: object) -> Plan:
    return plan_for(model, **{"context": 1024, "batch": 64, "ubatch": 64, "flash_attention": "off", **changes})


@pytest.fixture
def loaded(tiny: Callable[..., Model]) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def start(kind: str = "llama", **changes: object) -> Engine:
        engines.append(Engine())
        load(engines[-1], plan_of(tiny(kind, letters=True), **changes))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def begins_alike(text: str, other: str) -> bool:
    return text[:3] == other[:3]


def said(engine: Engine, request: Request) -> tuple[str, Done]:
    text, _, done = answer(engine.generate(request))
    return text, done


@pytest.mark.parametrize("draft", [None, Draft("ngram", None, None, 4, 0.0)], ids=["plain", "ngram"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_turn_computes_only_what_is_new(loaded: Callable[..., Engine], kind: str, draft: Draft | None) -> None:
    engine, fresh = loaded(kind, draft=draft), loaded(kind)
    first, done = said(engine, wanted(FIRST))
    assert done.stats.cached_tokens == 0
    assert done.reuse == "nothing had been computed before"
    second = (FIRST, Message("assistant", first), Message("user", "And then?"))
    text, done = said(engine, wanted(*second))
    new = len("_\n_user\nAnd then?_\n_assistant\n")
    assert done.stats.prompt_tokens - done.stats.cached_tokens <= new + 1, done.reuse  # one more where the answer was cut
    assert begins_alike(text, said(fresh, wanted(*second, reuse=False))[0]), "the same text as without a memory"


@pytest.mark.parametrize("kind", KINDS)
def test_another_answer_computes_no_more_than_the_end_of_the_prompt(loaded: Callable[..., Engine], kind: str) -> None:
    engine, fresh = loaded(kind), loaded(kind)
    said(engine, wanted(FIRST, seed=1))
    text, done = said(engine, wanted(FIRST, seed=2))
    assert done.stats.prompt_tokens - done.stats.cached_tokens <= len("_assistant\n"), done.reuse
    assert begins_alike(text, said(fresh, wanted(FIRST, seed=2, reuse=False))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_conversation_is_computed_from_where_it_changed(loaded: Callable[..., Engine], kind: str) -> None:
    """Also after two turns: the checkpoint of the turn before is still there."""
    engine, fresh = loaded(kind), loaded(kind)
    first, _ = said(engine, wanted(FIRST))
    before = (FIRST, Message("assistant", first))
    said(engine, wanted(*before, Message("user", "And then?")))
    changed = (*before, Message("user", "And now?"))
    text, done = said(engine, wanted(*changed))
    assert begins_alike(text, said(fresh, wanted(*changed, reuse=False))[0])
    assert done.stats.cached_tokens > len(FIRST.content), done.reuse
    assert "'now?" in str(done.reuse) or "'ow?" in str(done.reuse) or "all that" in str(done.reuse)


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_goes_on_from_disk(loaded: Callable[..., Engine], kind: str, tmp_path: Path) -> None:
    engine, other = loaded(kind), loaded(kind)
    first, _ = said(engine, wanted(FIRST))
    second = (FIRST, Message("assistant", first), Message("user", "And then?"))
    held = engine.save_state(tmp_path / "state")
    assert other.load_state(tmp_path / "state") == held
    text, done = said(other, wanted(*second))
    assert done.stats.cached_tokens >= held - 1, done.reuse
    assert begins_alike(text, said(engine, wanted(*second))[0]), "the same next tokens"


@pytest.mark.parametrize("damage", ["cut", "another model", "no state at all"])
def test_a_state_that_does_not_fit_is_refused_and_the_engine_serves_on(
    loaded: Callable[..., Engine], tmp_path: Path, damage: str
) -> None:
    file = tmp_path / "state"
    engine = loaded("hybrid" if damage == "another model" else "llama")
    said(engine, wanted(FIRST))
    engine.save_state(file)
    raw = file.read_bytes()
    file.write_bytes({"cut": raw[: len(raw) // 2], "another model": raw, "no state at all": b"GGUF" * 100}[damage])
    other = loaded("llama")
    with pytest.raises(EngineError, match="could not take up the state"):
        other.load_state(file)
    text, done = said(other, wanted(FIRST))
    assert done.stats.cached_tokens == 0
    assert begins_alike(text, said(loaded("llama"), wanted(FIRST, reuse=False))[0])


def test_a_draft_model_keeps_its_memory_too(loaded: Callable[..., Engine], tiny: Callable[..., Model]) -> None:
    draft = Draft("model", tiny("llama", letters=True, noise=0.02).file, None, 4, 0.0)
    engine, fresh = loaded("llama", draft=draft), loaded("llama")
    first, _ = said(engine, wanted(FIRST))
    second = (FIRST, Message("assistant", first), Message("user", "And then?"))
    text, done = said(engine, wanted(*second))
    assert done.stats.accepted > 0
    assert begins_alike(text, said(fresh, wanted(*second, reuse=False))[0])


def test_an_answer_goes_on_from_where_it_broke_off(loaded: Callable[..., Engine]) -> None:
    engine = loaded()
    whole, done = said(engine, wanted(FIRST))
    begun = whole[: len(whole) // 2]
    rest, after = said(loaded(), wanted(FIRST, begun=Begun(answer=begun)))
    assert begun + rest == whole
    assert after.stats.tokens < done.stats.tokens, "what was written counts towards the limit"


def reasoning_model(scripted: Callable[..., Model]) -> Model:
    return scripted([b"<think>", *[bytes([letter]) for letter in b"abcdefghij"], b"</think>", b"O", b"K"])


def test_reasoning_that_broke_off_goes_on_as_reasoning(scripted: Callable[..., Model]) -> None:
    with Engine() as engine:
        load(engine, plan_for(scripted([b"e", b"f", b"</think>", b"O", b"K"])))
        begun = wanted(FIRST, begun=Begun(reasoning="abcd"))
        text, reasoning, _ = answer(engine.generate(begun))
        assert (reasoning, text) == ("ef", "OK")
        assert engine.count(begun) - engine.count(wanted(FIRST)) == len("T_abcd"), "the tag is one token"


def test_an_answer_that_broke_off_after_its_reasoning_goes_on_as_answer(scripted: Callable[..., Model]) -> None:
    with Engine() as engine:
        load(engine, plan_for(scripted([b"O", b"K"])))
        begun = wanted(FIRST, begun=Begun(reasoning="abcd", answer="It is "))
        text, reasoning, _ = answer(engine.generate(begun))
        assert (reasoning, text) == ("", "OK")
        assert engine.count(begun) - engine.count(wanted(FIRST)) == len("T_abcd_T__It is ")


def test_reasoning_is_closed_after_as_many_tokens_as_asked_for(scripted: Callable[..., Model]) -> None:
    with Engine() as engine:
        load(engine, plan_for(reasoning_model(scripted)))
        text, reasoning, done = answer(engine.generate(wanted(FIRST, max_thinking=4)))
        assert reasoning == "abc"  # the tag itself is one of the four tokens
        assert done.notes == ("the reasoning was closed after 4 tokens, as asked for",)
        assert done.finish_reason in ("stop", "length")
        assert text, "the answer comes after it"
        text, reasoning, done = answer(engine.generate(wanted(FIRST, max_thinking=40)))
        assert (reasoning, text, done.notes) == ("abcdefghij", "OK", ())

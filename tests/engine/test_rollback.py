"""Cuts of a model's memory: after a legal one the next logits are those of a fresh prefill, an illegal one never leaves a
wrong state (FACTS, Speculation: llama_memory_seq_rm can return True and lie). Flash attention is off: on the CPU its rounding
depends on how a prompt was cut into batches, by far more than the bound here.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import plan_for
from tokencli.core import Draft, Model, Sampling
from tokencli.decode.sampling import Floats
from tokencli.engine.model import LoadedModel, Opening

DEPTH = 8
WINDOW = 32


@pytest.fixture
def opened(llama: Any, tiny: Callable[..., Model]) -> Iterator[Callable[[str], LoadedModel]]:
    """Opens a tiny model of a kind, ready to be drafted for at depth 8."""
    models: list[LoadedModel] = []

    def open_model(kind: str, context: int = 1024) -> LoadedModel:
        draft = Draft("ngram", None, None, DEPTH, 0.0)
        options = {"window": WINDOW} if kind == "sliding" else {}
        plan = plan_for(tiny(kind, **options), draft=draft, context=context, batch=64, ubatch=64, flash_attention="off")
        model = LoadedModel(llama, Opening.of_target(plan), lambda _fraction: True)
        model.open_context()
        model.sampling = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)
        models.append(model)
        return model

    yield open_model
    for model in models:
        model.close()


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(10, 260), k=count)


def probabilities(model: LoadedModel) -> Floats:
    """Log-probabilities of the whole vocabulary after the last token, by id."""
    found = model.candidates(0)
    return np.asarray(found.log_probabilities[np.argsort(found.ids)])


def fresh(model: LoadedModel, tokens: list[int]) -> Floats:
    """What a prefill from nothing says after `tokens`; the last alone, as other batch sizes may round otherwise."""
    model.rollback(0)
    model.decode(tokens[:-1], 0)
    model.decode(tokens[-1:], 1)
    return probabilities(model)


def after_cut(model: LoadedModel, text: list[int], last_call: int, cut: int, then: int) -> Floats:
    """Decode `text`, the last `last_call` tokens in one call, cut to `cut` tokens, decode `then`."""
    model.rollback(0)
    model.decode(text[:-last_call], 0)
    model.decode(text[-last_call:], last_call)
    model.rollback(cut)
    assert model.length == cut
    model.decode([then], 1)
    return probabilities(model)


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid", "experts"])
@pytest.mark.parametrize("length", [40, 300])
def test_after_any_cut_the_next_logits_are_a_fresh_prefills(opened: Callable[[str], LoadedModel], kind: str, length: int) -> None:
    """Every cut inside the last call of a round of drafting, and far ones: legal or not, the state is right afterwards."""
    model = opened(kind)
    text = tokens_of(length)
    cuts = [*range(length - DEPTH, length), length - DEPTH - 1, length - 20, length // 2, 5, 1]
    for cut in cuts:
        found = after_cut(model, text, last_call=DEPTH + 1, cut=cut, then=77)
        assert np.abs(found - fresh(model, [*text[:cut], 77])).max() < 1e-3, f"cut to {cut} of {length}"


def test_a_cut_inside_the_last_call_is_legal_for_every_kind(opened: Callable[[str], LoadedModel]) -> None:
    """Drafting never costs a second prefill: the floor lies at the call's first token or before."""
    for kind in ("llama", "sliding", "hybrid", "experts"):
        model = opened(kind)
        model.decode(tokens_of(300), 0)
        model.decode(tokens_of(DEPTH + 1, seed=1), DEPTH + 1)
        assert model.floor() <= 301, kind


def test_floors_by_kind(opened: Callable[[str], LoadedModel]) -> None:
    """A plain cache reaches 0; a hybrid its last call; a sliding window what its cells still hold."""
    floors = {}
    for kind in ("llama", "sliding", "hybrid", "experts"):
        model = opened(kind)
        model.decode(tokens_of(600), 0)
        model.decode(tokens_of(5, seed=1), 5)
        floors[kind] = model.floor()
    assert floors["llama"] == floors["experts"] == 0
    assert floors["hybrid"] == 601
    assert 0 < floors["sliding"] <= 601 - WINDOW


def test_a_far_cut_with_a_sliding_window_is_a_fresh_prefill(opened: Callable[[str], LoadedModel]) -> None:
    """FACTS: seq_rm returns True there and leaves next logits that are off by 5 to 9."""
    model = opened("sliding")
    text = tokens_of(700)
    model.decode(text, 0)
    before = model.seconds
    model.rollback(100)
    assert model.seconds > before, "the tokens before the cut were decoded again"
    model.decode([77], 1)
    found = probabilities(model)
    assert np.abs(found - fresh(model, [*text[:100], 77])).max() < 1e-3


def test_a_hybrid_cut_over_two_calls_is_a_fresh_prefill(opened: Callable[[str], LoadedModel]) -> None:
    model = opened("hybrid")
    text = tokens_of(30)
    model.decode(text[:20], 0)
    for token in text[20:]:
        model.decode([token], 1)
    before = model.seconds
    model.rollback(27)
    assert model.seconds > before
    model.decode([77], 1)
    found = probabilities(model)
    assert np.abs(found - fresh(model, [*text[:27], 77])).max() < 1e-3


def test_a_legal_cut_decodes_nothing_again(opened: Callable[[str], LoadedModel]) -> None:
    for kind in ("llama", "sliding", "hybrid", "experts"):
        model = opened(kind)
        model.decode(tokens_of(40), 0)
        model.decode(tokens_of(5, seed=1), 5)
        before = model.seconds
        model.rollback(42)
        assert model.seconds == before, kind


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid", "experts"])
def test_a_checkpoint_brings_back_what_no_cut_does(opened: Callable[[str], LoadedModel], kind: str) -> None:
    """Prefill with a checkpoint, a long answer, back to the checkpoint and to a place shortly after it."""
    model = opened(kind)
    text = tokens_of(600)
    for cut in (300, 310):
        model.rollback(0)
        model.decode(text[:300], 0)
        model.checkpoint()
        for start in range(300, 600, 5):
            model.decode(text[start : start + 5], 5)
        assert model.reach(cut) == (cut if kind in ("llama", "experts") else 300), "nothing more needs to be computed"
        model.rollback(cut)
        assert model.length == cut
        model.decode([77], 1)
        assert np.abs(probabilities(model) - fresh(model, [*text[:cut], 77])).max() < 1e-3


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_a_checkpoint_of_a_text_that_was_given_up_is_never_used(opened: Callable[[str], LoadedModel], kind: str) -> None:
    model = opened(kind)
    text = tokens_of(600)
    model.decode(text[:300], 0)
    model.checkpoint()
    model.decode(text[300:], 1)
    model.rollback(200)
    other = tokens_of(400, seed=1)
    model.decode(other, 1)
    assert model.reach(350) == 0
    model.rollback(350)
    model.decode([77], 1)
    assert np.abs(probabilities(model) - fresh(model, [*text[:200], *other[:150], 77])).max() < 1e-3


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid", "experts"])
def test_a_memory_read_back_from_disk_is_the_same(opened: Callable[[str], LoadedModel], kind: str, tmp_path: Path) -> None:
    model, other = opened(kind), opened(kind)
    text = tokens_of(400)
    model.decode(text, 1)
    file = str(tmp_path / "state")
    assert model.save_state(file) == Path(file).stat().st_size
    other.decode(tokens_of(50, seed=3), 1)
    other.load_state(file)
    assert list(other.held) == text
    for one in (model, other):
        one.decode([77], 1)
    assert np.abs(probabilities(model) - probabilities(other)).max() < 1e-6
    other.rollback(380)
    other.decode([77], 1)
    assert np.abs(probabilities(other) - fresh(model, [*text[:380], 77])).max() < 1e-3, "a cut after it is as right as ever"

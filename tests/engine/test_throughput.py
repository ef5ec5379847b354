"""llama-bench's tests in our engine: how many tokens are decoded, behind what, and nothing of it stays in an answer."""

from collections.abc import Callable

import pytest

from tests.engine.conftest import answer, load, plan_for
from tokencli.core import Message, Model, Request, Sampling
from tokencli.engine.client import Engine
from tokencli.engine.throughput import throughput
from tokencli.errors import DoesNotFit, EngineError

REQUEST = Request((Message("user", "Why?"),), Sampling(temperature=0), 8, past_end=True)


class Counted:
    """A target that notes what is decoded and cut."""

    class vocabulary:
        size = 50

    def __init__(self, batch: int = 8) -> None:
        self.batch = batch
        self.held: list[int] = []
        self.calls: list[tuple[int, int]] = []  # tokens, rows
        self.checkpoints: list[int] = []

    @property
    def length(self) -> int:
        return len(self.held)

    def decode(self, tokens: list[int], rows: int) -> None:
        self.held += tokens
        self.calls.append((len(tokens), rows))

    def rollback(self, length: int) -> None:
        del self.held[length:]

    def checkpoint(self) -> None:
        self.checkpoints.append(self.length)


def measured(target: Counted, tokens: int, depth: int, at_once: bool) -> list[tuple[int, int]]:
    target.calls.clear()
    throughput(target, tokens, depth, at_once, lambda: 0.0, lambda _done: None)  # type: ignore[arg-type]
    return list(target.calls)


def test_a_prompt_is_read_in_batches_and_an_answer_token_by_token() -> None:
    target = Counted()
    assert measured(target, 20, 0, at_once=True) == [(8, 1), (8, 1), (4, 1)]
    assert measured(target, 3, 0, at_once=False) == [(1, 1)] * 3
    assert target.length == 3


def test_what_lies_before_is_read_once_and_without_logits() -> None:
    target = Counted()
    target.held = [99, 98]  # of an answer before
    assert measured(target, 2, 10, at_once=False) == [(8, 0), (2, 0), (1, 1), (1, 1)]
    assert measured(target, 8, 10, at_once=True) == [(8, 1)]
    assert measured(target, 1, 16, at_once=False) == [(1, 1)], "deeper: what is held is kept, what was timed too"
    assert measured(target, 1, 4, at_once=False) == [(1, 1)]
    assert target.checkpoints == [10]


def test_only_the_tokens_asked_for_are_timed() -> None:
    target = Counted()
    clock = iter([1.0, 3.5])
    assert throughput(target, 2, 10, False, lambda: next(clock), lambda _done: None) == 2.5  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid"])
def test_answers_after_it_are_the_same(tiny: Callable[..., Model], kind: str) -> None:
    with Engine() as engine:
        load(engine, plan_for(tiny(kind), context=512, batch=64, ubatch=64))
        before = answer(engine.generate(REQUEST))[0]
        seconds = [engine.throughput(20, depth, at_once=at_once) for depth in (0, 100) for at_once in (True, False, True)]
        assert all(each > 0 for each in seconds)
        assert answer(engine.generate(REQUEST))[0] == before


def test_what_the_context_does_not_hold_and_a_missing_model_are_errors(tiny: Callable[..., Model]) -> None:
    with Engine() as engine:
        with pytest.raises(EngineError, match="no model"):
            engine.throughput(1, 0, at_once=True)
        load(engine, plan_for(tiny("llama"), context=256))
        with pytest.raises(DoesNotFit):
            engine.throughput(20, 250, at_once=True)

"""What a load took and could not use is given back: the weights, the context and the batch of each model."""

import collections
import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import KEPT, plan_for
from tokencli.core import Draft, Model, Plan
from tokencli.engine.log import LogCapture
from tokencli.engine.pair import Pair
from tokencli.errors import OutOfMemory

TAKEN = ("llama_model_load_from_file", "llama_init_from_model", "llama_batch_init")
GIVEN_BACK = ("llama_model_free", "llama_free", "llama_batch_free")


class Refusing:
    """The library, counting what is taken and given back; call `number` of `function` answers `refusal` in its place."""

    def __init__(self, llama: Any, function: str = "", number: int = 0, refusal: Any = None) -> None:
        self._llama, self._refused = llama, (function, number, refusal)
        self.calls: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._llama, name)
        function, number, refusal = self._refused

        def call(*arguments: Any) -> Any:
            if name == function and self.calls[name] == number - 1 and not self.calls["refused"]:
                self.calls["refused"] += 1
                return refusal
            self.calls[name] += 1
            return found(*arguments)

        return call if name in (*TAKEN, *GIVEN_BACK, "llama_decode") else found

    def held(self) -> list[int]:
        """Models, contexts and batches that were taken and not given back."""
        return [self.calls[one] - self.calls[other] for one, other in zip(TAKEN, GIVEN_BACK, strict=True)]


def load(llama: Refusing, plan: Plan) -> Pair:
    log = LogCapture(llama, io.StringIO())
    KEPT.append(log)
    return Pair.load(llama, log, plan, lambda _fraction: True, lambda: None)


@pytest.fixture
def plan(tiny: Callable[..., Model]) -> Plan:
    return plan_for(tiny(), context=256, draft=Draft("model", tiny(noise=0.02).file, None, 4, 0.0))


REFUSALS = [("llama_init_from_model", None), ("llama_decode", -2)]


def test_a_pair_that_is_closed_leaves_nothing(llama: Any, plan: Plan) -> None:
    library = Refusing(llama)
    load(library, plan).close()
    assert library.held() == [0, 0, 0]


@pytest.mark.parametrize(("function", "refusal"), REFUSALS)
def test_a_draft_that_was_refused_leaves_nothing(llama: Any, plan: Plan, function: str, refusal: int | None) -> None:
    library = Refusing(llama, function, 2, refusal)
    pair = load(library, plan)
    assert pair.draft is None
    assert library.calls["refused"] == 1
    assert library.held() == [1, 1, 1], "the target's"
    pair.close()


@pytest.mark.parametrize(("function", "refusal"), REFUSALS)
def test_a_target_that_was_refused_leaves_nothing(llama: Any, plan: Plan, function: str, refusal: int | None) -> None:
    library = Refusing(llama, function, 1, refusal)
    with pytest.raises(OutOfMemory):
        load(library, plan)
    assert library.held() == [0, 0, 0]

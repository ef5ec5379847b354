"""Drafters: prompt lookup by index, a model that follows the text, and one that fails."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tokencli.decode.drafters import Guarded, ModelDrafter, NgramDrafter
from tokencli.decode.sampling import Candidates
from tokencli.errors import DoesNotFit, EngineError, OutOfMemory, TokencliError


def scan(tokens: Sequence[int], most: int) -> list[int]:
    """The specification of prompt lookup, by brute force: longest match up to LONGEST, the most recent of equally long ones."""
    for size in range(min(NgramDrafter.LONGEST, len(tokens) - 1), NgramDrafter.SHORTEST - 1, -1):
        tail = list(tokens[-size:])
        for end in range(len(tokens) - 1, size - 1, -1):
            if list(tokens[end - size : end]) == tail:
                source = list(tokens)
                while len(source) < end + most:
                    source.append(source[len(source) - (len(tokens) - end)])
                return source[end : end + most]
    return []


@pytest.mark.parametrize("alphabet", [2, 4, 30])
def test_lookup_is_the_longest_most_recent_match(alphabet: int) -> None:
    source = random.Random(alphabet)
    drafter, tokens = NgramDrafter(), source.choices(range(alphabet), k=5)
    for _ in range(300):
        tokens += source.choices(range(alphabet), k=source.randint(1, 5))
        most = source.randint(1, 12)
        assert list(drafter.propose(tokens, most)) == scan(tokens, most)


def test_lookup_finds_nothing_in_a_text_without_repeats() -> None:
    assert list(NgramDrafter().propose(list(range(100)), 4)) == []


def test_lookup_goes_on_with_a_repeat_that_reaches_the_end() -> None:
    assert list(NgramDrafter().propose([1, 2, 3, 1, 2, 3, 1, 2], 7)) == [3, 1, 2, 3, 1, 2, 3]


def test_lookup_proposes_at_most_what_is_asked() -> None:
    assert list(NgramDrafter().propose([1, 2, 3, 1, 2], 0)) == []
    assert list(NgramDrafter().propose([1, 2, 3, 4, 1, 2], 1)) == [3]


class Counting:
    """A Decoder whose pick after any tokens is their sum modulo 97; checks that nothing is decoded that it holds already."""

    def __init__(self, fail_at: int | None = None, failure: type[TokencliError] = EngineError) -> None:
        self.held: list[int] = []
        self.decoded = 0
        self._fail_at, self._failure = fail_at, failure

    def decode(self, tokens: Sequence[int], rows: int) -> None:
        assert rows == 1
        assert tokens
        if self._fail_at is not None and self.decoded >= self._fail_at:
            raise self._failure("the draft broke", "")
        self.held += tokens
        self.decoded += len(tokens)

    def candidates(self, row: int) -> Candidates:
        return Candidates(np.array([sum(self.held) % 97]), np.zeros(1))

    def floor(self) -> int:
        return 0

    def rollback(self, length: int) -> None:
        assert length < len(self.held)
        del self.held[length:]


def expected(tokens: Sequence[int], most: int) -> list[int]:
    held = list(tokens)
    for _ in range(most):
        held.append(sum(held) % 97)
    return held[len(tokens) :]


def test_a_model_draft_follows_the_text_whatever_the_target_made_of_its_guesses() -> None:
    source = random.Random(3)
    decoder = Counting()
    drafter, tokens = ModelDrafter(decoder, seed=0), [5, 6, 7]
    for _ in range(200):
        most = source.randint(0, 6)
        draft = list(drafter.propose(tokens, most))
        assert draft == expected(tokens, most)
        accepted = source.randint(0, len(draft))
        own = source.randint(0, 96)
        tokens = [*tokens, *draft[:accepted], own]


def test_a_model_draft_decodes_each_token_of_the_text_once() -> None:
    """With every guess accepted, a round costs one catch-up of two tokens and the guesses but the last."""
    decoder = Counting()
    drafter, tokens = ModelDrafter(decoder, seed=0), [1, 2, 3]
    for _ in range(10):
        draft = list(drafter.propose(tokens, 4))
        tokens = [*tokens, *draft, sum([*tokens, *draft]) % 97]
    assert decoder.decoded == 3 + 3 + 9 * (2 + 3)


class Looked(list[int]):
    """A text that counts how many of its tokens were looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


def test_a_draft_that_rests_compares_each_token_of_a_later_turn_once() -> None:
    drafter, text = ModelDrafter(Counting(), seed=0), Looked(range(1000))
    drafter.propose(text, 1)
    drafter.begin(0)
    text.looks = 0
    for token in range(100):
        text.append(token)
        assert drafter.behind(text) == 1 + token
    assert text.looks < 1200


@pytest.mark.parametrize("failure", [EngineError, OutOfMemory, DoesNotFit])
def test_a_draft_that_fails_is_dropped_and_the_reason_kept(failure: type[TokencliError]) -> None:
    drafter = Guarded(ModelDrafter(Counting(fail_at=6, failure=failure), seed=0))
    assert list(drafter.propose([1, 2, 3], 3)) == expected([1, 2, 3], 3)
    assert list(drafter.propose([1, 2, 3, 4], 3)) == []
    assert list(drafter.propose([1, 2, 3, 4, 5], 3)) == []
    assert drafter.failure == "the draft broke"


def test_lookup_goes_on_after_a_draft_model_that_failed() -> None:
    drafter = Guarded(ModelDrafter(Counting(fail_at=0), seed=0), NgramDrafter())
    assert list(drafter.propose([1, 2, 3, 1, 2], 2)) == []
    assert list(drafter.propose([1, 2, 3, 1, 2, 3], 2)) == [1, 2]
    assert drafter.failure == "the draft broke"

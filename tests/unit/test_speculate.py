"""The token loop over a language model that fits on a page: the text is the target's own, whatever a drafter says."""

import itertools
import math
import random
import zlib
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencli.core import Sampling
from tokencli.decode.sampling import Candidates, candidates
from tokencli.decode.speculate import Drafter, Step, speculate

VOCABULARY = 12
PROMPT = (3, 1, 4, 1, 5)
TABLE = np.random.default_rng(0).normal(scale=2, size=(97, VOCABULARY)).astype(np.float32)


@cache
def after(prefix: tuple[int, ...], temperature: float) -> Candidates:
    """The language model: logits are a pure function of everything before."""
    return candidates(TABLE[zlib.crc32(bytes(prefix)) % 97], Sampling(temperature))


class FakeDecoder:
    """A Decoder that refuses what an engine refuses: too many tokens, and going back behind the last decode call.

    The floor is that of a hybrid model: inside the last call, at least one of its tokens kept (FACTS, Speculation).
    """

    def __init__(self, prompt: Sequence[int], temperature: float, context: int) -> None:
        self.kept = tuple(prompt)
        self.calls = self.rollbacks = 0
        self._temperature, self._context = temperature, context
        self._floor, self._rows = len(prompt), [len(prompt)]

    def decode(self, tokens: Sequence[int], rows: int) -> None:
        assert 0 < rows == len(tokens), "one row for each guess, and one more"
        self._floor = len(self.kept) + 1
        self.kept += tuple(tokens)
        assert len(self.kept) <= self._context, "llama.cpp has no cell for this token"
        self._rows = list(range(len(self.kept) - rows + 1, len(self.kept) + 1))
        self.calls += 1

    def candidates(self, row: int) -> Candidates:
        return after(self.kept[: self._rows[row]], self._temperature)

    def floor(self) -> int:
        return self._floor

    def rollback(self, length: int) -> None:
        assert self.floor() <= length < len(self.kept)
        self.kept = self.kept[:length]
        self.rollbacks += 1


class Silent:
    """A drafter that knows nothing."""

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return ()


class Knowing:
    """A drafter that knows the text, and spoils the guess at every position that `right` refuses."""

    def __init__(self, text: Sequence[int], right: Callable[[int], bool]) -> None:
        self._text, self._right = text, right
        self.asked: list[int] = []

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        self.asked.append(most)
        guesses = range(len(tokens), min(len(tokens) + most, len(self._text)))
        return [self._text[at] if self._right(at) else (self._text[at] + 1) % VOCABULARY for at in guesses]


class Run:
    """One run of the loop, checked at every step: what is decoded is all that was said but the last token."""

    def __init__(
        self, drafter: Drafter, depth: int = 4, temperature: float = 0.8, *, prompt=PROMPT, seed: int = 7, context: int = 64
    ) -> None:
        self.decoder = FakeDecoder(prompt, temperature, context)
        self.history = list(prompt)
        self.loop = speculate(self.decoder, drafter, self.history, seed=seed, depth=depth, context=context)
        self.steps: list[Step] = []

    def steps_taken(self, most: int | None = None) -> "Run":
        for step in itertools.islice(self.loop, most):
            self.steps.append(step)
            assert tuple(self.history[:-1]) == self.decoder.kept
        return self


def plain(temperature: float = 0.8, **options) -> list[int]:
    """The text with its prompt, to the end of the context."""
    return Run(Silent(), 0, temperature, **options).steps_taken().history


DRAFTERS: dict[str, Callable[[int], bool]] = {
    "perfect": lambda at: True,
    "wrong": lambda at: False,
    "half right": lambda at: at % 8 < 4,
    "alternating": lambda at: at % 2 == 0,
    "random": lambda at: random.Random(at).random() < 0.7,
}


@given(
    depth=st.integers(1, 16),
    temperature=st.sampled_from([0.0, 0.8]),
    right=st.sampled_from(list(DRAFTERS.values())),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6),
    seed=st.integers(0, 1 << 32),
    context=st.integers(6, 40),
)
@settings(max_examples=60)
def test_the_text_is_that_of_plain_decoding_with_any_draft(
    depth: int, temperature: float, right: Callable[[int], bool], prompt: list[int], seed: int, context: int
) -> None:
    where = {"prompt": prompt, "seed": seed, "context": context}
    text = plain(temperature, **where)
    drafted = Run(Knowing(text, right), depth, temperature, **where).steps_taken()
    assert drafted.history == text
    assert [*prompt, *(token for step in drafted.steps for token in step.tokens)] == text


@pytest.mark.parametrize("right", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("context", range(len(PROMPT), len(PROMPT) + 12))
def test_the_context_is_used_to_its_last_cell_and_no_further(right: Callable[[int], bool], context: int) -> None:
    run = Run(Knowing(plain(), right), context=context).steps_taken()
    assert len(run.history) == context + 1, "the last token is said, not decoded"
    assert run.history == plain()[: context + 1]


@pytest.mark.parametrize("depth", [1, 3, 16])
def test_a_drafter_is_asked_for_no_more_than_the_depth_and_the_context_allow(depth: int) -> None:
    drafter = Knowing(plain(), DRAFTERS["wrong"])  # one token a step, so every length is asked at
    Run(drafter, depth).steps_taken()
    assert drafter.asked == [min(depth, 64 - length) for length in range(len(PROMPT) + 1, 64)], "and not at all for nothing"


def test_plain_decoding_is_one_token_and_one_pass_at_a_time() -> None:
    run = Run(Silent(), depth=0).steps_taken(20)
    assert all(len(step.tokens) == 1 and step.drafted == step.accepted == 0 for step in run.steps)
    assert (run.decoder.calls, run.decoder.rollbacks) == (19, 0), "the first token comes from the prompt's own pass"


@pytest.mark.parametrize("depth", [1, 3, 7, 16])
def test_a_perfect_draft_is_accepted_whole_and_saves_passes(depth: int) -> None:
    run = Run(Knowing(plain(), DRAFTERS["perfect"]), depth).steps_taken()
    assert all(step.accepted == step.drafted for step in run.steps)
    assert run.decoder.rollbacks == 0
    assert run.decoder.calls == math.ceil((len(run.history) - len(PROMPT) - 1) / (depth + 1))


def test_a_wrong_draft_costs_its_rows_and_changes_nothing() -> None:
    run = Run(Knowing(plain(), DRAFTERS["wrong"])).steps_taken(20)
    assert [(len(step.tokens), step.drafted, step.accepted) for step in run.steps] == [(1, 0, 0), *[(1, 4, 0)] * 19]
    assert run.decoder.rollbacks == run.decoder.calls == 19


@pytest.mark.parametrize("right", DRAFTERS.values(), ids=DRAFTERS)
def test_a_step_tells_what_was_drafted_and_what_of_it_stands(right: Callable[[int], bool]) -> None:
    drafter = Knowing(plain(), right)
    run = Run(drafter).steps_taken()
    assert run.steps[0] == Step((plain()[len(PROMPT)],), drafted=0, accepted=0)
    assert all(len(step.tokens) == step.accepted + 1 and step.accepted <= step.drafted for step in run.steps[1:])
    assert sum(step.accepted < step.drafted for step in run.steps) == run.decoder.rollbacks
    assert sum(step.drafted for step in run.steps) == sum(drafter.asked)


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))
def test_only_guesses_up_to_the_first_wrong_one_stand(guesses: list[int]) -> None:
    class Once:
        def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
            return guesses if len(tokens) == len(PROMPT) + 1 else ()

    run = Run(Once()).steps_taken(2)
    true = plain()[len(PROMPT) + 1 :]
    agreeing = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(guesses, true, strict=False)))
    assert run.steps[1] == Step(tuple(true[: agreeing + 1]), drafted=len(guesses), accepted=agreeing)


def test_nothing_is_decoded_before_the_first_token_is_out_or_after_closing() -> None:
    run = Run(Knowing(plain(), DRAFTERS["perfect"])).steps_taken(1)
    assert run.decoder.calls == 0
    run.steps_taken(2)
    run.loop.close()
    assert list(run.loop) == []
    assert run.decoder.calls == 2


@pytest.mark.parametrize("said", [1, 2, 20])
def test_the_text_goes_on_alike_from_anywhere(said: int) -> None:
    """A position's random number needs no memory: a fallback may start again with what was said as its prompt."""
    assert plain(prompt=plain()[: len(PROMPT) + said]) == plain()


def test_a_seed_is_a_text_and_greedy_needs_none() -> None:
    assert plain(0.8, seed=1) == plain(0.8, seed=1) != plain(0.8, seed=2)
    assert plain(0, seed=1) == plain(0, seed=2)

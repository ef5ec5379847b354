"""The adaptive drafter around the token loop: same text whatever the clock says, and what it learns is what happened."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.unit.test_drafters import Counting, expected
from tests.unit.test_speculate import PROMPT, VOCABULARY, FakeDecoder, Run, after, plain
from tokencli.core import Sampling
from tokencli.decode.adaptive import LOOKUP, MODEL, Adaptive
from tokencli.decode.depth import Choice, Controller, Round
from tokencli.decode.drafters import ModelDrafter
from tokencli.decode.sampling import Candidates


class Clock:
    """Goes on by what the test adds, and by anything at each look where `wild`."""

    def __init__(self, wild: int | None = None) -> None:
        self.now = 0.0
        self._source = random.Random(wild) if wild is not None else None

    def __call__(self) -> float:
        if self._source:
            self.now += self._source.expovariate(1) ** 3
        return self.now


class Sure(Counting):
    """A draft that is sure of all it says, in time: a step takes `step` seconds, a token read more a tenth of it."""

    def __init__(self, clock: Clock | None = None, step: float = 0.1) -> None:
        super().__init__()
        self._clock, self._step = clock, step

    def decode(self, tokens: Sequence[int], rows: int) -> None:
        super().decode(tokens, rows)
        if self._clock:
            self._clock.now += self._step * (1 + (len(tokens) - 1) / 10)

    def probability(self, row: int, token: int) -> float:
        return 0.99


class SameModel(FakeDecoder):
    """The language model itself as its own draft."""

    def decode(self, tokens: Sequence[int], rows: int) -> None:
        self.kept += tuple(tokens)
        self._rows = [len(self.kept)]

    def rollback(self, length: int) -> None:
        self.kept = self.kept[:length]

    def probability(self, row: int, token: int) -> float:
        found = after(self.kept, self._temperature)
        return float(np.exp(found.log_probabilities)[list(found.ids).index(token)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding_whatever_the_clock_says(seed: int, temperature: float) -> None:
    clock = Clock(wild=seed)
    draft = SameModel((), temperature, 10_000)
    drafter = Adaptive(Controller(8, {LOOKUP: 0.0, MODEL: 0.2}), ModelDrafter(draft, 7, clock), clock, clock)
    run = Run(drafter, 8, temperature, context=300).steps_taken()
    assert run.history == plain(temperature, context=300)
    assert sum(step.drafted for step in run.steps) > 0


class Listening(Controller):
    """Takes down what it is told; chooses as the test says."""

    def __init__(self, choices: list[Choice]) -> None:
        super().__init__(8, {LOOKUP: 0.0, MODEL: 0.1})
        self.told: list[Round] = []
        self.heard: list[tuple[int, int]] = []
        self._choices = choices

    def choose(self, backlog: object, most: int) -> Choice:
        return self._choices.pop(0) if self._choices else Choice()

    def goes_on(self, choice: Choice, made: int, probability: float) -> tuple[bool, bool]:
        return True, True

    def learn(self, done: Round) -> None:
        self.told.append(done)

    def overheard(self, name: str, made: int, accepted: int) -> None:
        self.heard.append((made, accepted))


def test_a_round_is_told_as_it_was() -> None:
    clock = Clock()
    controller = Listening([Choice(MODEL, 3), Choice(MODEL, 3)])
    target_seconds = [0.0]
    drafter = Adaptive(controller, ModelDrafter(Sure(clock), 0, clock), clock, lambda: target_seconds[0])
    tokens = [1, 2, 3]
    draft = list(drafter.propose(tokens, 8))
    assert draft == expected(tokens, 3)
    clock.now += 1.5
    target_seconds[0] += 1.0  # half a second was neither the draft's nor the target's
    drafter.propose([*tokens, *draft[:2], 96], 8)
    (told,) = controller.told
    assert (told.made, told.accepted, told.read, told.steps) == (3, 2, 3, 2)
    assert (told.verify, told.rest) == (1.0, pytest.approx(0.5))
    assert (told.reading, told.draft) == (pytest.approx(0.12), pytest.approx(0.2))
    assert told.told == (0.99, 0.99, 0.99)


@pytest.mark.parametrize("tokens", [[1, 2, 3], [1, 2, 3, 50, 51, 52, 53, 54, 55], [1, 2, 3, 90, 91]])
def test_a_text_that_somebody_else_went_on_with_teaches_nothing(tokens: list[int]) -> None:
    controller = Listening([Choice(MODEL, 3)])
    drafter = Adaptive(controller, ModelDrafter(Sure(), 0), Clock(), lambda: 0.0)
    drafter.propose([1, 2, 3], 8)
    drafter.propose(tokens, 8)
    assert controller.told == []


def test_lookup_is_overheard_where_it_is_not_asked() -> None:
    controller = Listening([])
    drafter = Adaptive(controller, None, Clock(), lambda: 0.0)
    text = [1, 2, 3, 4, 5, 1, 2]
    drafter.propose(text, 3)  # it would have said 3, 4, 5
    for more in ([3], [4], [9]):
        text = [*text, *more]
        drafter.propose(text, 3)
    assert controller.heard == [(3, 2)]


def test_a_draft_reads_a_tail_when_told_and_all_of_it_later() -> None:
    decoder = Sure()
    drafter = ModelDrafter(decoder, 0)
    text = list(range(1, 41))
    drafter.propose(text, 2, lambda _made, _told: (True, True), tail=8)
    assert decoder.held[:8] == text[-8:], "only the end"
    assert drafter.behind([*text, 5]) == 41
    draft = list(drafter.propose([*text, 5], 2))
    assert decoder.held[:41] == [*text, 5]
    assert draft == expected([*text, 5], 2)
    assert drafter.behind([*text, 5, *draft, 7]) == 2


def test_a_draft_stops_where_it_is_told_to() -> None:
    drafter = ModelDrafter(Sure(), 0)
    ways = {2: (True, False), 3: (False, False)}
    for stop, length in ((2, 2), (3, 2)):
        draft = list(drafter.propose([1, 2, 3], 8, lambda made, _told, stop=stop: ways[stop] if made == stop else (True, True)))
        assert draft == expected([1, 2, 3], 8)[:length]
        assert len(drafter.spent.told) == stop


def test_the_fake_language_model_is_the_real_one() -> None:
    draft = SameModel(PROMPT, 0.8, 100)
    draft.decode([], 1)
    assert isinstance(draft.candidates(0), Candidates)
    assert 0 < draft.probability(0, int(draft.candidates(0).ids[0])) <= 1
    assert Sampling().temperature == 0.8
    assert VOCABULARY == 12

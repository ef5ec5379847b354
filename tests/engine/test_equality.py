"""Thousands of prompts: drafted decoding gives the tokens of plain decoding, whatever the draft, depth and temperature.

In one process and without text, so that it is quick. TOKENCLI_EQUALITY_PROMPTS sets how many prompts of each kind are tried.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests import tiny_models
from tests.engine.conftest import plan_for
from tokencli.core import Draft, Model, Sampling
from tokencli.decode.adaptive import LOOKUP, MODEL, Adaptive
from tokencli.decode.depth import Controller
from tokencli.decode.drafters import ModelDrafter, NgramDrafter, NoDraft
from tokencli.decode.speculate import Drafter, speculate
from tokencli.engine.model import LoadedModel, Opening

PROMPTS = int(os.environ.get("TOKENCLI_EQUALITY_PROMPTS", "60"))
MOST = 16
TOKENS = 20


class RandomDrafter:
    """Guesses any token, and sometimes none."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return self._source.choices(range(500), k=self._source.randint(0, most))


class MostlyRight:
    """Knows what comes, and is wrong at one token in five: runs are cut at every place."""

    def __init__(self, start: int, expected: Sequence[int], seed: int) -> None:
        self._start, self._expected = start, expected
        self._source = random.Random(seed)

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        coming = self._expected[len(tokens) - self._start :][:most]
        return [token if self._source.random() < 0.8 else self._source.randrange(500) for token in coming]


class Clock:
    """Jumps by anything, so that any depth looks best at some time."""

    def __init__(self) -> None:
        self._source = random.Random(2)
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self._source.expovariate(1) ** 3
        return self._now


CLOCKS = {"adaptive": time.perf_counter, "adaptive, jumping clock": Clock()}


@pytest.fixture(scope="module")
def open_model(llama: Any, tiny: Callable[..., Model]) -> Iterator[Callable[..., LoadedModel]]:
    models: dict[str, LoadedModel] = {}

    def open_one(kind: str, **options: Any) -> LoadedModel:
        key = repr((kind, options))
        if key not in models:
            plan = plan_for(tiny(kind, **options), draft=Draft("ngram", None, None, MOST, 0.0), context=256)
            models[key] = LoadedModel(llama, Opening.of_target(plan), lambda _fraction: True)
            models[key].open_context()
        return models[key]

    yield open_one
    for model in models.values():
        model.close()


def decode(target: LoadedModel, drafter: Drafter, prompt: Sequence[int], sampling: Sampling, depth: int) -> tuple[list[int], int]:
    """TOKENS tokens after the prompt, and how many of them were accepted guesses."""
    target.rollback(0)
    target.sampling = sampling
    target.decode(prompt, 1)
    history, accepted = list(prompt), 0
    for step in speculate(target, drafter, history, seed=sampling.seed, depth=depth, context=target.context):
        accepted += step.accepted
        if len(history) - len(prompt) >= TOKENS:
            break
    return history[len(prompt) : len(prompt) + TOKENS], accepted


def prompts() -> Iterator[tuple[list[int], Sampling, int]]:
    """Random tokens, every third prompt repeating itself; greedy and sampled; depths 1 to 16."""
    source = random.Random(1)
    for number in range(PROMPTS):
        prompt = source.choices(range(10, 260), k=source.randint(1, 40))
        sampling = Sampling(temperature=source.choice((0, 0.8)), seed=number)
        yield prompt * (3 if number % 3 == 0 else 1), sampling, source.randint(1, MOST)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_tokens_are_equal_with_every_draft(open_model: Callable[..., LoadedModel], kind: str) -> None:
    target = open_model(kind)
    drafts = {"bad": open_model("llama", seed=99)}
    if kind != "hybrid":
        drafts["good"] = open_model(kind, noise=0.02)
    accepted = dict.fromkeys((*drafts, "lookup", "random", "mostly right", *CLOCKS), 0)
    controllers = {name: Controller(MOST, {LOOKUP: 0.0, MODEL: 0.5}) for name in CLOCKS}
    last = [*drafts][-1]
    for number, (prompt, sampling, depth) in enumerate(prompts()):
        expected, _ = decode(target, NoDraft(), prompt, sampling, 0)
        drafters: dict[str, Drafter] = {
            "lookup": NgramDrafter(),
            "random": RandomDrafter(number),
            "mostly right": MostlyRight(len(prompt), expected, number),
        }
        for name, model in drafts.items():
            model.rollback(0)
            model.sampling = sampling
            drafters[name] = ModelDrafter(model, sampling.seed)
        for name, now in CLOCKS.items():
            model = ModelDrafter(drafts[last], sampling.seed, now)
            drafters[name] = Adaptive(controllers[name], model, now, now)  # wrong times, too, change no text
        for name, drafter in drafters.items():
            if name in CLOCKS:
                drafts[last].rollback(0)
            found, stood = decode(target, drafter, prompt, sampling, depth)
            assert found == expected, f"prompt {number}, {name} draft, depth {depth}, temperature {sampling.temperature}"
            accepted[name] += stood
    assert accepted.get("good", 1) > 0
    assert accepted["mostly right"] > PROMPTS
    assert kind == "hybrid" or accepted["adaptive, jumping clock"] > 0


QUESTIONS = [
    f"{verb} {thing}."
    for verb in ("Explain", "Describe", "Write a short story about", "List three facts about")
    for thing in ("the sea", "a bicycle", "the number seven", "rain", "an old harbour")
]


def test_tokens_are_equal_on_a_real_model(llama: Any, smollm2: Model) -> None:
    """SmolLM2 with 20 prompts. Its Q4_1 weights are multiplied in whole numbers, as those of Q8_0 are."""
    plan = plan_for(smollm2, draft=Draft("ngram", None, None, MOST, 0.0), context=512)
    target = LoadedModel(llama, Opening.of_target(plan), lambda _fraction: True)
    target.open_context()
    accepted, source = 0, random.Random(2)
    for number, question in enumerate(QUESTIONS):
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = target.vocabulary.prompt_tokens(text)
        sampling, depth = Sampling(temperature=source.choice((0, 0.8)), seed=number), source.randint(1, MOST)
        expected, _ = decode(target, NoDraft(), prompt, sampling, 0)
        for name, drafter in {"lookup": NgramDrafter(), "mostly right": MostlyRight(len(prompt), expected, number)}.items():
            found, stood = decode(target, drafter, prompt, sampling, depth)
            assert found == expected, f"{question}, {name} draft, depth {depth}, temperature {sampling.temperature}"
            accepted += stood
    target.close()
    assert accepted > 100

"""Prefill and decode speed in llama-bench's meaning: pp and tg by depth, without a draft, sampling or text. Prints nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tokencli.engine.client import Engine

USUAL_DEPTHS = (0, 2048)


@dataclass(frozen=True, slots=True)
class Throughput:
    """`tokens` tokens read at once (pp) or decoded one after the other (tg), behind `depth` others."""

    kind: Literal["pp", "tg"]
    tokens: int
    depth: int = 0

    def __str__(self) -> str:
        """As llama-bench names it."""
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class Passed:
    """One measurement of a test."""

    test: Throughput
    number: int
    tokens_per_second: float


def throughputs(prompt: int, answer: int, depths: Sequence[int]) -> tuple[Throughput, ...]:
    """By depth, as llama-bench orders them."""
    return tuple(
        test for depth in sorted(set(depths)) for test in (Throughput("pp", prompt, depth), Throughput("tg", answer, depth))
    )


def measured(engine: Engine, every: Sequence[Throughput], runs: int) -> Iterable[Passed]:
    """Depth after depth, at each the tests in turn, so that what drifts is in all. Raises EngineError, Interrupted."""
    for depth in dict.fromkeys(test.depth for test in every):
        here = [test for test in every if test.depth == depth]
        for number in range(runs + 1):
            for test in here:
                tokens = 1 if test.kind == "tg" and not number else test.tokens  # llama-bench warms up with one, too
                seconds = engine.throughput(tokens, depth, at_once=test.kind == "pp")
                if number:
                    yield Passed(test, number, tokens / seconds)

"""llama-bench's two tests on a loaded target: tokens read at once, or one after the other, behind others. Samples nothing.

Tokens are random, always the same ones: a mixture of experts is to use many of them, and what lies before is read only once.
"""

import random
from collections.abc import Callable

from tokencli.decode.prefix import common_prefix
from tokencli.engine.model import LoadedModel

_STEPS = 16  # between two signs of life


def throughput(
    target: LoadedModel, tokens: int, depth: int, at_once: bool, now: Callable[[], float], tell: Callable[[int], None]
) -> float:
    """Seconds for `tokens` tokens behind `depth` others, which are not timed. `tell`: how many tokens are there.

    Raises DoesNotFit where the context has no room for them.
    """
    text = random.Random(1).choices(range(target.vocabulary.size), k=depth + tokens)
    _fill(target, text[:depth], tell)
    step = target.batch if at_once else 1
    begun = now()
    for start in range(depth, len(text), step):
        if (start - depth) % (step * _STEPS) == 0:
            tell(start)
        target.decode(text[start : start + step], 1)
    return now() - begun


def _fill(target: LoadedModel, text: list[int], tell: Callable[[int], None]) -> None:
    """The memory holds the text, and nothing else; a checkpoint lets models that cannot be cut come back to it."""
    target.rollback(common_prefix(target.held, text))
    if target.length == len(text):
        return
    for start in range(target.length, len(text), target.batch):
        tell(start)
        target.decode(text[start : start + target.batch], 0)
    target.checkpoint()

"""What `bench` and `tune` measure with: a prompt of a wanted length, and one answer timed. Prints nothing."""

import bisect
import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

from tokencli.core import Done, Message, Request, Sampling, Stats, Text
from tokencli.engine.client import Engine
from tokencli.errors import Interrupted
from tokencli.world.energy import Meter

_SUBJECTS = ("The keeper", "A young sailor", "My neighbour", "The teacher", "One of the farmers", "The captain", "Her brother")
_VERBS = ("mends", "counts", "paints", "remembers", "carries", "sells", "looks for", "writes about", "draws")
_OBJECTS = (
    "the nets",
    "two red boats",
    "a box of oranges",
    "old letters",
    "the ropes",
    "a map",
    "nine lamps",
    "the harbour wall",
)
_ENDS = ("before supper", "in spring", "while it rains", "near the river", "for the children", "on market days", "without a word")
_FILLERS = (" a", " the", ".", ",", " 1", "\n", "a")


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it was measured; `late` where it was cut by the time allowed, so that its figures do not count. `pace`: what
    was learned of the draft. `joules` from the first token to the last, None where nobody measured or nothing tells.
    """

    stats: Stats
    text: str
    late: bool
    pace: Mapping[str, Any] | None = None
    joules: float | None = None


def per_token(joules: float | None, stats: Stats) -> float | None:
    """Joules over the tokens after the first."""
    return joules / (stats.tokens - 1) if joules is not None and stats.tokens > 1 else None


def prose(words: int) -> list[str]:
    """At least so many words of sentences that hardly repeat (prompt lookup must not look better than it is), always the same."""
    source = random.Random(1)
    found: list[str] = []
    while len(found) < words:
        parts = (_SUBJECTS, _VERBS, _OBJECTS, _ENDS)
        found += (" ".join(each[int(source.random() * len(each))] for each in parts) + ".").split()
    return found


def request_of(text: str, tokens: int) -> Request:
    """A greedy answer of exactly `tokens` tokens to the text: what is compared must be of one length."""
    return Request((Message("user", text),), Sampling(temperature=0), tokens, past_end=True)


def text_of(length: int, count: Callable[[str], int]) -> str:
    """A text whose prompt has `length` tokens as `count` tells, or as near below as its template and vocabulary allow."""
    words = prose(length)
    fits = bisect.bisect_right(range(len(words) + 1), length, key=lambda number: count(" ".join(words[:number]))) - 1
    text = " ".join(words[: max(fits, 0)])
    missing, before = 1, -1
    while missing and missing != before:
        before = missing
        text = next((text + more for more in _FILLERS if count(text) < count(text + more) <= length), text)
        missing = max(length - count(text), 0)
    return text


def counted(engine: Engine) -> Callable[[str], int]:
    """Tokens of the prompt that asks the engine's model for a text."""
    return lambda text: engine.count(request_of(text, 1))


def timed(engine: Engine, request: Request, timeout: float | None = None, meter: Meter | None = None) -> Answer:
    """One answer, nothing kept of the last one's memory. Raises EngineError, DoesNotFit; Interrupted where Ctrl-C came.

    `meter`: is shown the time from the first token to the last.
    """
    text, done = "", None
    for event in engine.generate(request, timeout):
        if meter and isinstance(event, Text | Done):
            meter.sample(last=isinstance(event, Done))
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, Done):
            done = event
    if engine.interrupted:
        raise Interrupted("interrupted")
    assert done, "an answer ends with Done"
    return Answer(done.stats, text, done.finish_reason == "timeout", done.pace, meter.joules() if meter else None)

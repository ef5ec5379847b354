"""What `scripts/bench conversation` measures: a later turn of a conversation whose memory is kept, here and on disk."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import ratio

from tokencli.app.chat import Chat, ChatWishes
from tokencli.app.world import World
from tokencli.core import Done, Event, Planned, Sampling, Text
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import Sessions
from tokencli.world.states import States

_SENTENCE = "The old harbour lies at the mouth of the river, where the water is deep enough for ships of every size. "
_QUESTION = "What lies at the mouth of the river?"


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    ttft: float
    prompt_tokens: int
    cached_tokens: int


def conversation(pairs: int = 7, sentences: int = 82, tokens: int = 24) -> None:
    """TTFT of a second turn, in memory and reopened from disk, against the first turn of a conversation of 2,000 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = [_round(Path(folder) / str(number), sentences, tokens) for number in range(pairs + 1)][1:]
    first, second, reopened, opening = zip(*rounds, strict=True)
    print(f"first turn: {first[0].prompt_tokens} tokens; second: {second[0].prompt_tokens - second[0].cached_tokens} new of them")
    print(f"TTFT of the second turn / of the first: {ratio([each.ttft for each in second], [each.ttft for each in first])}")
    with_state = [turn.ttft + seconds for turn, seconds in zip(reopened, opening, strict=True)]
    print(f"TTFT of it reopened, the state's reading counted / of the first: {ratio(with_state, [each.ttft for each in first])}")
    same = sum(one.text == other.text for one, other in zip(second, reopened, strict=True))
    print(f"same answer in memory and reopened: {same} of {len(rounds)}")


def _round(folder: Path, sentences: int, tokens: int) -> tuple[Turn, Turn, Turn, float]:
    """First and second turn; the second once more, reopened from disk before it; and the seconds that took."""
    with _chat(folder, tokens, None)[0] as chat:
        first = _turn(chat.say(_SENTENCE * sentences + _QUESTION))
    chat, opening = _chat(folder, tokens, True)
    with chat:
        reopened = _turn(chat.say(_QUESTION))
    with _chat(folder / "other", tokens, None)[0] as chat:
        _turn(chat.say(_SENTENCE * sentences + _QUESTION))
        second = _turn(chat.say(_QUESTION))
    return first, second, reopened, opening


def _chat(folder: Path, tokens: int, resume: bool | None) -> tuple[Chat, float]:
    """An open chat, and the seconds from a loaded model to one that holds the conversation's state."""
    world = World(open_sessions=lambda: Sessions.open(folder / "s.db"), open_states=lambda: States(folder / "states"))
    wishes = Wishes(context=4096, draft="off")
    chat = Chat(
        ChatWishes("smollm2-135m", wishes, Sampling(temperature=0), max_tokens=tokens, resume=bool(resume)),
        world,
    )
    loaded = time.perf_counter()
    for event in chat.open():
        if isinstance(event, Planned):
            loaded = time.perf_counter()
    return chat, time.perf_counter() - loaded


def _turn(events: Iterator[Event]) -> Turn:
    text, done = "", None
    for event in events:
        text += event.text if isinstance(event, Text) else ""
        done = event
    assert isinstance(done, Done)
    assert done.stats.ttft_seconds is not None
    return Turn(text, done.stats.ttft_seconds, done.stats.prompt_tokens, done.stats.cached_tokens)

"""What `scripts/bench conversation` measures: a later turn of a conversation whose memory is kept, here and on disk."""

import contextlib
import os
import pty
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import interleaved, ratio

from tokencli.app.chat import Chat, ChatWishes
from tokencli.app.world import World
from tokencli.cli.answer import answer_view
from tokencli.cli.terminal import Terminal
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


_LONG = "Write a long text in Markdown about the sea: headings, lists, a table and a Python function."


def rendering(pairs: int = 7, tokens: int = 200) -> None:
    """What showing an answer as Markdown costs: in the worker's token loop, and of the command's own processor time."""
    with tempfile.TemporaryDirectory() as folder, _screen() as terminal:
        for threads in (1, 2):
            chat = _open(Path(folder) / str(threads), tokens, threads)
            with chat:
                shown, unshown = interleaved(lambda: _shown(chat, terminal), lambda: _shown(chat, None), pairs)  # noqa: B023
            for which, what in enumerate(("the worker's time outside llama_decode", "the command's own processor time")):
                figures = f"{_median_of(shown, which):.3f} shown, {_median_of(unshown, which):.3f} not shown"
                print(f"{threads} thread(s), {what}, ms a token: {figures} (medians of {pairs})")


def _median_of(measured: list[tuple[float, float]], which: int) -> float:
    return statistics.median(each[which] for each in measured)


def _open(folder: Path, tokens: int, threads: int) -> Chat:
    world = World(open_sessions=lambda: Sessions.open(folder / "s.db"), open_states=lambda: States(folder / "states"))
    wishes = Wishes(context=4096, draft="off", threads=threads)
    chat = Chat(ChatWishes("smollm2-135m", wishes, Sampling(temperature=0), max_tokens=tokens), world)
    for _ in chat.open():
        pass
    return chat


def _shown(chat: Chat, terminal: Terminal | None) -> tuple[float, float]:
    """One answer; milliseconds a token outside llama_decode in the worker, and of this process's processor time."""
    view = answer_view(terminal) if terminal else None
    before, done = time.process_time(), None
    for event in chat.say(_LONG):
        if isinstance(event, Text) and view:
            view.feed(event.kind, event.text)
        done = event
    if view:
        view.finish()
    chat.undo()
    assert isinstance(done, Done)
    assert done.stats.overhead_ms_per_token is not None
    return done.stats.overhead_ms_per_token, 1000 * (time.process_time() - before) / done.stats.tokens


@contextlib.contextmanager
def _screen() -> Iterator[Terminal]:
    """A terminal that somebody reads."""
    master, slave = pty.openpty()
    threading.Thread(target=_read_all, args=(master,), daemon=True).start()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        yield Terminal(stream, stream, stream, {"TERM": "xterm"})


def _read_all(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65536):
            pass

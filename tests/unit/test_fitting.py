"""What becomes of a conversation that outgrows the context, with an engine whose summary is written in advance."""

from collections.abc import Iterator

import pytest

from tests.unit.test_views import STATS
from tokencli.app.chat_settings import ChatSettings
from tokencli.app.conversation import Conversation
from tokencli.app.fitting import Fitting
from tokencli.core import Done, Event, FinishReason, Note, Request, Sampling, Text

SETTINGS = ChatSettings(Sampling(temperature=0), overflow="compact")


class Writer:
    """An engine that counts letters and writes one summary, which ends as the test says."""

    context = 1024

    def __init__(self, ending: FinishReason) -> None:
        self._ending: FinishReason = ending

    def count(self, request: Request) -> int:
        return sum(len(message.content) for message in request.messages)

    def generate(self, _: Request) -> Iterator[Event]:
        yield Text("answer", "All we")
        yield Done(self._ending, STATS)


def fitted(ending: FinishReason) -> tuple[Fitting, list[Event], Done | None]:
    """A conversation of 900 tokens in a context of 1024."""
    conversation = Conversation(None, lambda _: None)
    for _ in range(3):
        conversation.ask("x" * 150)
        conversation.extend("answer", "y" * 150)
        conversation.finish(cut=False)
    fitting = Fitting(conversation)
    steps, events = fitting.made_to_fit(Writer(ending), SETTINGS), []  # type: ignore[arg-type]
    while True:
        try:
            events.append(next(steps))
        except StopIteration as stop:
            return fitting, events, stop.value


@pytest.mark.parametrize("ending", ["cancelled", "timeout"])
def test_a_summary_that_is_cut_leaves_nothing_out_and_ends_the_turn(ending: FinishReason) -> None:
    fitting, _, done = fitted(ending)
    assert done
    assert done.finish_reason == ending
    assert (fitting.skipped, fitting.summary) == (0, None)


def test_a_summary_that_is_too_long_is_none() -> None:
    fitting, events, done = fitted("length")
    assert (fitting.skipped > 0, fitting.summary, done) == (True, None, None)
    assert isinstance(events[-1], Note)
    assert events[-1].text.endswith("messages are left out from now on")


def test_a_whole_summary_stands_for_what_is_left_out() -> None:
    fitting, _, done = fitted("stop")
    assert (fitting.skipped > 0, fitting.summary, done) == (True, "All we", None)

"""Notes that a user has read need no second time, however many plans and answers have them."""

import contextlib
from collections.abc import Generator
from typing import TypeVar

from tokencli.core import Event, Note

_T = TypeVar("_T")


def once(events: Generator[Event, None, _T], told: set[str]) -> Generator[Event, None, _T]:
    """The events without the notes in `told`, which grows; what they return is returned."""
    with contextlib.closing(events):
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                result: _T = end.value
                return result
            if not isinstance(event, Note):
                yield event
            elif event.text not in told:
                told.add(event.text)
                yield event

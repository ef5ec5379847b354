"""Takes the steps of a long command to their result, showing each. Knows nothing of what they are."""

from collections.abc import Callable, Generator
from typing import TypeVar

Event = TypeVar("Event")
Result = TypeVar("Result")


def follow(steps: Generator[Event, None, Result], show: Callable[[Event], None], clear: Callable[[], None]) -> Result:
    """What the steps return. Ctrl-C while one is shown is theirs to answer, like one that comes while they work."""
    try:
        event = next(steps)
        while True:
            try:
                show(event)
            except KeyboardInterrupt:
                event = steps.throw(KeyboardInterrupt())
            else:
                event = next(steps)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        clear()

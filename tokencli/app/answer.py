"""The story of `run`: wires what is found in the world to the pure decisions and to the engine. Prints nothing."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokencli.app.opened import opened
from tokencli.app.pace import keeping_pace
from tokencli.app.world import World, seconds_left
from tokencli.core import Done, Event, Message, Note, Request, Sampling
from tokencli.errors import UsageError
from tokencli.plan.choose import Wishes


@dataclass(frozen=True, slots=True)
class Question:
    """One `run`: the model by name, the prompt, and all that was asked for with it."""

    model: str
    prompt: str
    system: str | None = None
    wishes: Wishes = field(default_factory=Wishes)
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    timeout: float | None = None
    stop: tuple[str, ...] = ()
    show_draft: bool = False
    grammar: str | None = None
    json_schema: str | None = None

    @property
    def request(self) -> Request:
        system = (Message("system", self.system),) if self.system else ()
        bound = self.grammar is not None or self.json_schema is not None
        return Request(
            (*system, Message("user", self.prompt)),
            self.sampling,
            self.max_tokens,
            self.stop,
            self.show_draft,
            thinking="off" if bound else "on",  # reasoning is no part of what the grammar allows
            grammar=self.grammar,
            json_schema=self.json_schema,
        )


def random_seed() -> int:
    """A seed nobody chose: 32 bits, so that it can be read and typed again."""
    return secrets.randbits(32)


def check_prompt(prompt: str) -> None:
    """Raises UsageError for one without any text."""
    if not prompt.strip():
        raise UsageError("the prompt is empty", 'give some text: tokencli run MODEL "a question"')


def run(question: Question, world: World) -> Iterator[Event]:
    """One answer as events: notes, Planned, Loading, Loaded, Prefilling, Text, and Done at the end. Close it to stop.

    Raises a TokencliError for all that goes wrong; text already yielded stays valid.
    """
    check_prompt(question.prompt)
    deadline = None if question.timeout is None else world.now() + question.timeout
    result = yield from opened(question.model, question.wishes, world, deadline)
    with result.engine as engine:
        events = engine.generate(question.request, seconds_left(deadline, world))
        for event in keeping_pace(events, result.plan, world):
            if isinstance(event, Done):
                yield from (Note(note) for note in event.notes)
            yield event

"""The story of `run`: wires what is found in the world to the pure decisions and to the engine. Prints nothing."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tokencli.app.ladder import FAILURES, Ladder
from tokencli.app.opened import opened
from tokencli.app.pace import keeping_pace
from tokencli.app.shaders import telling_of_shaders
from tokencli.app.slow import why_slow
from tokencli.app.told import once
from tokencli.app.world import World, is_late, seconds_left
from tokencli.core import Begun, Done, Event, Message, Note, Request, Sampling, Text
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

    A plan that fails leads to the next one, and the answer goes on after what was yielded: Planned and the rest come again.
    Raises a TokencliError for what no plan mends; text already yielded stays valid.
    """
    check_prompt(question.prompt)
    ladder, wishes, begun = Ladder(), question.wishes, Begun()
    told: set[str] = set()
    deadline: float | None = None
    while True:
        result = yield from once(opened(question.model, wishes, world, question.timeout, deadline=deadline), told)
        deadline = result.deadline
        with result.engine as engine:
            try:
                events = engine.generate(replace(question.request, begun=begun), seconds_left(deadline, world))
                events = telling_of_shaders(events, result.plan, world)
                for event in keeping_pace(events, result.plan, world):
                    begun = _after(begun, event)
                    if isinstance(event, Done):
                        slow = why_slow(result, event.stats, world)
                        yield from (Note(note) for note in (*event.notes, *([slow] if slow else [])))
                    yield event
                return
            except FAILURES as failure:
                step = None if is_late(deadline, world) else ladder.after(failure, result.plan, result.wishes)
                if step is None:
                    raise
                yield Note(f"{failure.what}; the engine is started again{step.words}, and the answer goes on")
                wishes = step.wishes


def _after(begun: Begun, event: Event) -> Begun:
    """What of the answer is out, with one more event."""
    if not isinstance(event, Text):
        return begun
    if event.kind == "reasoning":
        return replace(begun, reasoning=begun.reasoning + event.text)
    return replace(begun, answer=begun.answer + event.text)

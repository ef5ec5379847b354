"""The story of `chat`: one open conversation, kept on disk as it grows, and the engine that answers in it. Prints nothing."""

import dataclasses
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tokencli.app.answer import Question, check_prompt, random_seed
from tokencli.app.chat_engine import ChatEngine
from tokencli.app.chat_settings import ChatSettings, Overflow
from tokencli.app.chat_store import Store
from tokencli.app.conversation import Conversation
from tokencli.app.fitting import Fitting
from tokencli.app.ladder import FAILURES, Ladder
from tokencli.app.templates import template_source
from tokencli.app.told import once
from tokencli.app.world import World, read_model
from tokencli.core import Done, Event, Note, Plan, Sampling, Stats, Text, Thinking
from tokencli.errors import UsageError
from tokencli.paths import typed
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import SessionLine, StoredMessage

_NEARLY_FULL = 0.8


@dataclass(frozen=True, slots=True)
class ChatWishes:
    """All that was asked for with `chat`. `session`: its name; `resume`: go on with the latest. `timeout`: seconds."""

    model: str | None
    wishes: Wishes = field(default_factory=Wishes)
    sampling: Sampling | None = None
    system: str | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    template: str | None = None
    overflow: Overflow = "stop"
    thinking: Thinking = "on"
    max_thinking: int | None = None
    session: str | None = None
    resume: bool = False
    timeout: float | None = None
    show_draft: bool = False


@dataclass(frozen=True, slots=True)
class ChatStats:
    """What `/stats` tells. `reuse`: how much of the last prompt was not computed again, and why not more, in a sentence."""

    plan: Plan | None
    last: Stats | None
    context_used: int
    messages: int
    reuse: str | None
    memory_bytes: int | None
    session: str


class Chat:
    """A conversation. What answers yields events: notes, Loading, Loaded, Planned, Prefilling, Text, and one Done at the end.

    Close the iterator to cut an answer: what was yielded stays in the conversation. Everything is on disk before it is
    yielded. Use as a context manager. All methods raise a TokencliError for what a user can mend.
    """

    def __init__(self, wishes: ChatWishes, world: World) -> None:
        self._world = world
        self._notes: list[str] = []
        self._told: set[str] = set()
        self._settings = ChatSettings(
            sampling=wishes.sampling or Sampling(seed=random_seed()),
            max_tokens=wishes.max_tokens,
            stop=wishes.stop,
            overflow=wishes.overflow,
            thinking=wishes.thinking,
            max_thinking=wishes.max_thinking,
            template=template_source(wishes.template) if wishes.template else None,
            show_draft=wishes.show_draft,
        )
        self._attached: list[str] = []
        self._store = Store(world, self._notes.append)
        try:
            session = self._store.first(wishes.session, wishes.resume, wishes.model)
            model = wishes.model or (session.model if session else None)
            if model is None:
                hint = "name one: tokencli chat smollm2-135m; --continue takes up the latest conversation"
                raise UsageError("no model is named", hint)
        except BaseException:
            self._store.close()
            raise
        self._engine = ChatEngine(model, wishes.wishes, world, self._store, wishes.timeout)
        self._take(Conversation(session, self._notes.append))
        self._name = None if session else wishes.session
        if wishes.system is not None:
            self._conversation.system = wishes.system

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def open(self) -> Iterator[Event]:
        """Plan and load, and take up the session's conversation where it has one."""
        yield from self._all_notes()
        yield from once(self._engine.ready(self._conversation, self._settings), self._told)

    def close(self) -> None:
        """Keep the engine's cache on disk for the next time and end the worker. Never raises."""
        self._engine.close(self._conversation)
        self._store.close()

    # what is there

    @property
    def model(self) -> str:
        return self._engine.model

    @property
    def messages(self) -> tuple[StoredMessage, ...]:
        """The conversation without the system message."""
        return self._conversation.messages

    @property
    def settings(self) -> dict[str, str]:
        """What `/set` knows, by name, as it would be typed."""
        return self._settings.shown()

    @property
    def system(self) -> str | None:
        return self._conversation.system

    def stats(self) -> ChatStats:
        session = self._conversation.session
        return ChatStats(
            plan=self._engine.plan,
            last=self._last,
            context_used=self._used,
            messages=len(self.messages),
            reuse=self._reuse,
            memory_bytes=self._engine.memory_bytes(),
            session=session.name if session else "not saved",
        )

    def sessions(self, search: str | None = None) -> list[SessionLine]:
        """Saved conversations, the latest first; `search`: only those with the text in name or messages."""
        return self._store.lines(search)

    # what answers

    def say(self, text: str) -> Iterator[Event]:
        """A user's message and its answer. Files given to `read` before come along in front of it."""
        if not text.strip():
            raise UsageError("the message is empty", "give some text")
        self._begin_session()
        self._conversation.ask("\n\n".join([*self._attached, text]))
        self._attached.clear()
        yield from self._answer()

    def regenerate(self) -> Iterator[Event]:
        """Another answer to the last message, with another seed."""
        at = self._question()
        self._cut_to(at + 1)
        self._seed_offset += 1
        yield from self._answer()

    def edit(self, text: str) -> Iterator[Event]:
        """Put `text` in place of the last user message and answer it."""
        self._cut_to(self._question())
        yield from self.say(text)

    def use_model(self, name: str) -> Iterator[Event]:
        """Go on with another model, the conversation kept. Where it cannot be had, the old one stays and the error is raised."""
        read_model(name, self._world, hollow=True)
        yield from once(self._engine.switch(self._conversation, self._settings, model=name), self._told)
        self._conversation.keep_model(name)

    def use_draft(self, name: str) -> Iterator[Event]:
        """Go on with another draft: auto, off, ngram or a model."""
        yield from once(self._engine.switch(self._conversation, self._settings, draft=name), self._told)

    def load(self, name: str) -> Iterator[Event]:
        """Go on with a saved conversation."""
        session = self._store.find(name)
        self._engine.keep_state(self._conversation)
        self._conversation.close()
        self._take(Conversation(session, self._notes.append))
        if session.model != self.model:
            yield Note(f"the conversation was with {session.model}; it goes on with {self.model}")
        self._engine.take_up_state(self._conversation)
        yield from self._all_notes()

    # what changes the conversation

    def undo(self) -> str | None:
        """Take back the last message and its answer; the message, None where there was none."""
        at = self._conversation.last_question
        if at is None:
            return None
        message = self.messages[at].content
        self._cut_to(at)
        return message

    def clear(self) -> None:
        """Begin a new conversation with the same system message; the old one stays saved."""
        system = self.system
        self._engine.keep_state(self._conversation)
        self._conversation.close()
        self._take(Conversation(None, self._notes.append))
        self._conversation.system = system

    def set_system(self, text: str | None) -> None:
        self._conversation.system = text or None

    def set(self, name: str, value: str) -> None:
        """Change one of `settings`. Raises UsageError with what would be right."""
        self._settings = self._settings.changed(name, value)

    def think(self, mode: Thinking) -> None:
        """Ask the template for reasoning or none from now on; a note comes with the answer where it knows no such thing."""
        self._settings = dataclasses.replace(self._settings, thinking=mode)

    def read(self, name: str) -> int:
        """Keep a text file for the next message; its length in characters. Raises UsageError where it cannot be read as text."""
        path = typed(name)
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not text in UTF-8", "convert it first") from None
        self._attached.append(f"{path.name}:\n```\n{text}\n```")
        return len(text)

    def save(self, name: str) -> None:
        """Give the session a name. Raises UsageError where another has it."""
        self._begin_session()
        session = self._conversation.session
        if session is None:
            raise UsageError("conversations cannot be saved here", "use /export md FILE")
        session.rename(name)

    def delete(self, name: str) -> None:
        """Delete a saved conversation for good. Raises UsageError where there is none of the name, or it is open."""
        self._store.delete(name)

    def export(self, name: str, kind: Literal["md", "json"]) -> None:
        """Write the conversation to a new file. Raises UsageError where it exists or cannot be written."""
        path = typed(name)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(self._conversation.exported(kind, self.model))
        except FileExistsError:
            raise UsageError(f"{path} exists", "give another name") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}", "give another path") from None

    # inside

    def _take(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._fitting = Fitting(conversation)
        self._attached.clear()
        self._seed_offset = 0
        self._used = 0
        self._warned = False
        self._told_slow = False
        self._last: Stats | None = None
        self._reuse: str | None = None

    def _begin_session(self) -> None:
        if self._conversation.session is None and not self._conversation.unsaved:
            self._conversation.begin(self._store.create(self.model, self._name))
            self._name = None

    def _question(self) -> int:
        at = self._conversation.last_question
        if at is None:
            raise UsageError("there is no message yet", "write one first")
        return at

    def _cut_to(self, count: int) -> None:
        self._conversation.cut_to(count)
        self._fitting.cut_to(count)
        self._warned = False

    def _answer(self) -> Iterator[Event]:
        """One answer, whatever becomes of the engine in between: it goes on from what was shown."""
        whole = False
        try:
            ladder = Ladder()
            while True:
                try:
                    done = yield from self._attempt()
                    break
                except FAILURES as failure:
                    self._engine.drop()
                    step = self._engine.step_down(failure, ladder, self._used)
                    if step is None:
                        raise
                    yield Note(f"{failure.what}; the engine is started again{step}, and the answer goes on")
            whole = done.finish_reason == "stop"
        finally:
            self._conversation.finish(cut=not whole)
        yield from self._all_notes()
        yield done

    def _attempt(self) -> Generator[Event, None, Done]:
        """From an engine that may have to be started to the Done that ends the answer, which is returned."""
        yield from once(self._engine.ready(self._conversation, self._settings), self._told)
        yield from self._all_notes()
        while True:
            done = yield from self._fitting.made_to_fit(self._engine, self._settings)
            if done:
                return done
            for event in self._engine.generate(self._fitting.request(self._settings, self._seed_offset)):
                if isinstance(event, Done):
                    done = event
                    continue
                if isinstance(event, Text):
                    self._conversation.extend(event.kind, event.text)
                yield event
            assert done
            yield from once((Note(note) for note in done.notes), self._told)
            yield from self._slow(done)
            self._remember(done)
            if not self._fitting.goes_on_after(done, self._engine, self._settings):
                yield from self._warning(done)
                return done

    def _remember(self, done: Done) -> None:
        stats = done.stats
        self._last, self._used = stats, stats.prompt_tokens + stats.tokens
        kept = f"{stats.cached_tokens} of {stats.prompt_tokens} tokens of the prompt were not computed again"
        earlier = "" if stats.cached_tokens else f"; {self._engine.state_note}"
        self._reuse = f"{kept}: {done.reuse}{earlier}"

    def _slow(self, done: Done) -> Iterator[Note]:
        """That an answer was far slower than predicted, once a conversation."""
        if not self._told_slow and (why := self._engine.why_slow(done.stats)):
            self._told_slow = True
            yield Note(why)

    def _warning(self, done: Done) -> Iterator[Note]:
        """The context's end, told before it comes."""
        plan = self._engine.plan
        if plan is None:
            return
        if self._used >= plan.context and done.finish_reason == "length":
            yield Note(f"the context of {plan.context} tokens is full, the answer was cut: {_WAYS_OUT}")
        elif self._used > _NEARLY_FULL * plan.context and not self._warned:
            self._warned = True
            yield Note(f"{self._used} of the context's {plan.context} tokens are used: {_AT_THE_END[self._settings.overflow]}")

    def _all_notes(self) -> Iterator[Note]:
        while self._notes:
            yield Note(self._notes.pop(0))


def run_in_session(question: Question, session: str, world: World) -> Iterator[Event]:
    """One answer as the next turn of a saved conversation, begun where there is none of the name. As app.run otherwise."""
    check_prompt(question.prompt)
    wishes = ChatWishes(
        model=question.model,
        wishes=question.wishes,
        sampling=question.sampling,
        system=question.system,
        max_tokens=question.max_tokens,
        stop=question.stop,
        session=session,
        timeout=question.timeout,
        show_draft=question.show_draft,
    )
    with Chat(wishes, world) as chat:
        yield from chat.open()
        yield from chat.say(question.prompt)


_WAYS_OUT = "/clear begins anew, /undo takes back, /set overflow drop or compact goes on by itself"
_AT_THE_END = {"stop": _WAYS_OUT, "drop": "the oldest messages are left out then", "compact": "the oldest are summed up then"}

"""The story of `chat`: one open conversation, kept on disk as it grows, and the engine that answers in it. Prints nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokencli.app.world import World
from tokencli.core import Event, Plan, Sampling, Stats, Thinking
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import SessionLine, StoredMessage

Overflow = Literal["stop", "drop", "compact"]


@dataclass(frozen=True, slots=True)
class ChatWishes:
    """All that was asked for with `chat`. `session`: its name; `resume`: go on with the latest one."""

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
        raise NotImplementedError

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def open(self) -> Iterator[Event]:
        """Plan and load, and take up the session's conversation where it has one."""
        raise NotImplementedError

    def close(self) -> None:
        """Keep the engine's cache on disk for the next time and end the worker. Never raises."""
        raise NotImplementedError

    # what is there

    @property
    def model(self) -> str:
        raise NotImplementedError

    @property
    def messages(self) -> tuple[StoredMessage, ...]:
        """The conversation without the system message."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, str]:
        """What `/set` knows, by name, as it would be typed: temperature, top-k, top-p, min-p, seed, max-tokens, stop,
        overflow, max-thinking."""
        raise NotImplementedError

    def stats(self) -> ChatStats:
        raise NotImplementedError

    def sessions(self, search: str | None = None) -> list[SessionLine]:
        """Saved conversations, the latest first; `search`: only those with the text in name or messages."""
        raise NotImplementedError

    # what answers

    def say(self, text: str) -> Iterator[Event]:
        """A user's message and its answer. Files given to `read` before come along in front of it."""
        raise NotImplementedError

    def regenerate(self) -> Iterator[Event]:
        """Another answer to the last message, with another seed."""
        raise NotImplementedError

    def edit(self, text: str) -> Iterator[Event]:
        """Put `text` in place of the last user message and answer it."""
        raise NotImplementedError

    def use_model(self, name: str) -> Iterator[Event]:
        """Go on with another model, the conversation kept. Where it cannot be had, the old one stays and the error is raised."""
        raise NotImplementedError

    def use_draft(self, name: str) -> Iterator[Event]:
        """Go on with another draft: auto, off, ngram or a model."""
        raise NotImplementedError

    def load(self, name: str) -> Iterator[Event]:
        """Go on with a saved conversation."""
        raise NotImplementedError

    # what changes the conversation

    def undo(self) -> str | None:
        """Take back the last message and its answer; the message, None where there was none."""
        raise NotImplementedError

    def clear(self) -> None:
        """Begin a new conversation with the same system message; the old one stays saved."""
        raise NotImplementedError

    def set_system(self, text: str | None) -> None:
        raise NotImplementedError

    @property
    def system(self) -> str | None:
        raise NotImplementedError

    def set(self, name: str, value: str) -> None:
        """Change one of `settings`. Raises UsageError with what would be right."""
        raise NotImplementedError

    def think(self, mode: Thinking) -> str | None:
        """Ask the template for reasoning or none from now on; a note where the template knows no such thing."""
        raise NotImplementedError

    def read(self, path: Path) -> int:
        """Keep a text file for the next message; its length in characters. Raises UsageError where it cannot be read as text."""
        raise NotImplementedError

    def save(self, name: str) -> None:
        """Give the session a name. Raises UsageError where another has it."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        raise NotImplementedError

    def export(self, path: Path, kind: Literal["md", "json"]) -> None:
        """Write the conversation to a new file. Raises UsageError where it exists or cannot be written."""
        raise NotImplementedError

"""A conversation with the methods of app/chat.py whose answers are written in advance: no model, no disk."""

from collections.abc import Callable, Iterator

from tests.unit.test_views import DONE, ON_CPU, STATS
from tokencli.app.chat import ChatStats, ChatWishes
from tokencli.core import Done, Event, Loading, Planned, Prefilling, Text
from tokencli.errors import ModelNotFound, TokencliError, UsageError
from tokencli.world.sessions import SessionLine, StoredMessage

SAVED = [SessionLine("blue sky", "tiny", 4, 1.8e9, "Why is\nthe sky blue?"), SessionLine("plans", "big", 2, 1.7e9, "Go")]
Answer = Callable[[str], Iterator[Event]]


def echo(text: str) -> Iterator[Event]:
    yield Prefilling(1, 2)
    yield Text("reasoning", "hm")
    yield Text("answer", f"You said: {text}")
    yield DONE


def failing(error: TokencliError) -> Answer:
    def answer(_: str) -> Iterator[Event]:
        yield Text("answer", "half an ")
        raise error

    return answer


def cut(_: str) -> Iterator[Event]:
    """What the engine's client makes of Ctrl-C."""
    yield Text("answer", "half an")
    yield Done("cancelled", STATS)


class FakeStore:
    """Saved conversations without a model; `told`: what goes beside."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self.asked: list[tuple[str, ...]] = []
        told("the file was moved")

    def lines(self, search: str | None) -> list[SessionLine]:
        return FakeChat().sessions(search)

    def delete(self, name: str) -> None:
        self.asked.append(("delete", name))

    def close(self) -> None:
        self.asked.append(("close",))


class FakeChat:
    """`asked` holds what was called with what, in order."""

    def __init__(self, wishes: ChatWishes = ChatWishes("tiny"), answer: Answer = echo) -> None:  # noqa: B008
        self.wishes = wishes
        self.reply = answer
        self.asked: list[tuple[str, ...]] = []
        self.model = wishes.model or "tiny"
        self.system: str | None = None
        self.messages: tuple[StoredMessage, ...] = ()
        self.settings = {"temperature": "0.8", "top-k": "40", "overflow": "stop"}
        self.memory_bytes: int | None = 1 << 29

    def __enter__(self) -> "FakeChat":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.asked.append(("close",))

    def open(self) -> Iterator[Event]:
        self.asked.append(("open",))
        yield Loading(0.5)
        yield Planned(ON_CPU)

    def stats(self) -> ChatStats:
        return ChatStats(ON_CPU, STATS, 812, len(self.messages), "the whole prompt was known", self.memory_bytes, "now")

    def sessions(self, search: str | None = None) -> list[SessionLine]:
        return [each for each in SAVED if not search or search in each.name + each.first]

    def _answer(self, name: str, text: str) -> Iterator[Event]:
        self.asked.append((name, text))
        self.messages += (StoredMessage("user", text), StoredMessage("assistant", "…"))
        yield from self.reply(text)

    def say(self, text: str) -> Iterator[Event]:
        return self._answer("say", text)

    def edit(self, text: str) -> Iterator[Event]:
        return self._answer("edit", text)

    def regenerate(self) -> Iterator[Event]:
        return self._answer("regenerate", "")

    def use_model(self, name: str) -> Iterator[Event]:
        self.asked.append(("use_model", name))
        yield Loading(0.5)
        if name == "nowhere":
            raise ModelNotFound("nowhere is neither a file nor an alias", "known aliases: tiny")
        self.model = name

    def use_draft(self, name: str) -> Iterator[Event]:
        self.asked.append(("use_draft", name))
        yield Loading(0.5)

    def load(self, name: str) -> Iterator[Event]:
        self.asked.append(("load", name))
        yield Loading(0.5)
        self.messages = (StoredMessage("user", "old question"), StoredMessage("assistant", "old answer"))

    def undo(self) -> str | None:
        if not self.messages:
            return None
        *self.messages, taken, _ = self.messages
        return taken.content

    def clear(self) -> None:
        self.asked.append(("clear",))

    def set_system(self, text: str | None) -> None:
        self.system = text

    def set(self, name: str, value: str) -> None:
        if name == "temperature" and not value.replace(".", "").isdecimal():
            raise UsageError(f"temperature {value} is not a number", "give a value from 0 to 100")
        self.settings[name] = value

    def think(self, mode: str) -> None:
        self.asked.append(("think", mode))

    def read(self, name: str) -> int:
        self.asked.append(("read", name))
        return 1234

    def save(self, name: str) -> None:
        self.asked.append(("save", name))

    def delete(self, name: str) -> None:
        self.asked.append(("delete", name))

    def export(self, name: str, kind: str) -> None:
        self.asked.append(("export", name, kind))

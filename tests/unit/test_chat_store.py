"""What a chat makes of conversations that cannot be read."""

from pathlib import Path

import pytest

from tokencli.app.chat import Chat, ChatWishes
from tokencli.app.chat_store import Store
from tokencli.app.world import World
from tokencli.errors import NotSaved
from tokencli.world.sessions import Sessions
from tokencli.world.states import States


def damaged() -> Sessions:
    raise NotSaved("conversations cannot be kept in sessions.db: it is of a newer tokencli", "update tokencli")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(open_sessions=damaged, open_states=lambda: States(tmp_path / "states"))


@pytest.mark.parametrize("asked", [{"resume": True}, {"session": "sea"}])
def test_a_conversation_that_was_asked_for_and_cannot_be_had_ends_it_with_the_reason(world: World, asked: dict) -> None:
    for model in (None, "tiny"):
        with pytest.raises(NotSaved, match="newer tokencli"):
            Chat(ChatWishes(model, **asked), world)


def test_a_new_conversation_goes_on_unsaved(world: World) -> None:
    told: list[str] = []
    assert Store(world, told.append).first(None, False, "tiny") is None
    assert told == [
        "conversations cannot be kept in sessions.db: it is of a newer tokencli: the conversation is not saved; update tokencli"
    ]

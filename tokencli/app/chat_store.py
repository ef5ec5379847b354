"""Where conversations and caches are kept, for a chat that goes on where they cannot be. Knows sessions and states, no engine."""

from collections.abc import Callable

from tokencli.app.world import World
from tokencli.errors import NotSaved, UsageError
from tokencli.world.sessions import SessionLine, Sessions
from tokencli.world.sessions.session import Session
from tokencli.world.states import States


class Store:
    """The saved conversations, where the disk gives them; `told` gets what the user should know of it."""

    def __init__(self, world: World, told: Callable[[str], None]) -> None:
        self._told = told
        self.states: States = world.open_states()
        self._failure: NotSaved | None = None
        try:
            self._sessions: Sessions | None = world.open_sessions()
        except NotSaved as failure:
            self._sessions, self._failure = None, failure
            self._say(failure)
        else:
            for note in self._sessions.notes:
                told(note)

    def close(self) -> None:
        self.states.close()
        if self._sessions:
            self._sessions.close()
        self._sessions = None

    def first(self, name: str | None, resume: bool, model: str | None) -> Session | None:
        """The session to go on with: the one of that name, or the latest. None where it is yet to begin.

        Raises UsageError, and NotSaved where one was asked for and none can be had.
        """
        if self._sessions is None:
            if self._failure and (resume or name is not None):
                raise self._failure
            return None
        if resume and name is None:
            latest = self._sessions.latest()
            if latest is None:
                raise UsageError("there is no saved conversation to continue", "begin one: tokencli chat smollm2-135m")
            return latest
        if name is None:
            return None
        found = self._sessions.find(name)
        if found is None and model is None:
            hint = "name a model to begin one: tokencli chat MODEL --session NAME"
            raise UsageError(f"there is no saved conversation {name!r}", hint)
        return found

    def find(self, name: str) -> Session:
        """Raises UsageError where there is none of the name, or it is open elsewhere."""
        found = self._sessions.find(name) if self._sessions else None
        if found is None:
            raise UsageError(f"there is no saved conversation {name!r}", "/list shows them")
        return found

    def create(self, model: str, name: str | None = None) -> Session | None:
        """A new session; None, said once, where none can be kept."""
        if self._sessions is None:
            return None
        try:
            return self._sessions.create(model, name)
        except NotSaved as failure:
            self._say(failure)
            return None

    def lines(self, search: str | None) -> list[SessionLine]:
        return self._sessions.lines(search) if self._sessions else []

    def delete(self, name: str) -> None:
        """Raises UsageError where there is none of the name, or it is open."""
        session = self.find(name)
        session.close()
        assert self._sessions
        self._sessions.delete(name)
        self.states.forget(session.id)

    def _say(self, failure: NotSaved) -> None:
        self._told(f"{failure.what}: the conversation is not saved; {failure.hint}")

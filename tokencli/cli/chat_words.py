"""What can follow the cursor in a command: names of commands, models, sessions, settings. Knows no terminal."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tokencli.cli.chat_commands import COMMANDS, THINK_WORDS, find
from tokencli.errors import TokencliError

if TYPE_CHECKING:
    from tokencli.app.chat import Chat

FILES = "FILE"


class ChatWords:
    """The words of a conversation by the placeholder of the argument that they can stand for."""

    def __init__(self, chat: "Chat", models: Sequence[str]) -> None:
        self._words: dict[str, Callable[[], Iterable[str]]] = {
            "COMMAND": lambda: [each.name for each in COMMANDS],
            "MODEL": lambda: models,
            "auto|off|ngram|MODEL": lambda: ("auto", "off", "ngram", *models),
            "SESSION": lambda: [each.name for each in chat.sessions()],
            "SETTING": lambda: chat.settings,
            "md|json": lambda: ("md", "json"),
            "|".join(THINK_WORDS): lambda: THINK_WORDS,
        }

    def after(self, typed: str) -> tuple[str, list[str] | None]:
        """What was begun, and the words it can become; None for them: it is a file's name. `typed`: all before the cursor."""
        name, space, rest = typed.partition(" ")
        if not typed.startswith("/") or "\n" in typed:
            return "", []
        if not space:
            return name, self._beginning(name, [f"/{each.name}" for each in COMMANDS])
        command = find(name[1:])
        places = command.places if command else ()
        at = min(rest.count(" "), len(places) - 1)  # the last place takes the rest of the line
        if at < 0:
            return "", []
        begun = rest.split(" ", at)[-1]
        return begun, None if places[at] == FILES else self._beginning(begun, self._known(places[at]))

    def _known(self, place: str) -> Iterable[str]:
        try:
            return self._words.get(place, tuple)()
        except TokencliError:  # said when the command is given
            return ()

    @staticmethod
    def _beginning(begun: str, words: Iterable[str]) -> list[str]:
        return [word for word in words if word.startswith(begun) and word != begun]

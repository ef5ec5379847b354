"""What a line that begins with "/" can ask for: one table, one small function each. Knows no terminal and no editor."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tokencli.cli.chat_view import session_lines, shortened, stats_lines
from tokencli.cli.options import THINKING, THINKING_VIEWS
from tokencli.core import Event
from tokencli.errors import UsageError

if TYPE_CHECKING:
    from tokencli.app.chat import Chat

THINK_WORDS = (*THINKING_VIEWS, *THINKING)
KINDS = ("md", "json")


class Talk(Protocol):
    """What a command may do beside asking the conversation."""

    @property
    def chat(self) -> "Chat": ...

    @property
    def interactive(self) -> bool: ...

    def answer(self, events: Iterator[Event]) -> None:
        """Show what comes, up to the end. Raises what goes wrong."""

    def note(self, text: str) -> None:
        """One line that `--quiet` leaves out."""

    def table(self, lines: Iterable[str]) -> None:
        """Lines that were asked for."""

    def recall(self) -> None:
        """Show where the conversation stands."""

    def show_thoughts(self, shown: bool) -> None: ...

    def begin_line(self, text: str) -> None:
        """Let the next line begin with this text."""

    def leave(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Command:
    """`arguments`: placeholders as in a synopsis, the last takes the rest of the line; in brackets what may be left out."""

    name: str
    arguments: str
    help: str
    run: Callable[[Talk, str], None]
    example: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(re.findall(r"[^\s\[\]]+", self.arguments))

    @property
    def synopsis(self) -> str:
        return f"/{self.name} {self.arguments}".rstrip()


def perform(line: str, talk: Talk) -> None:
    """Carry out a command as it was typed. Raises UsageError that says what would be right, and what the chat raises."""
    name, argument = re.fullmatch(r"/(\S*)\s*(.*)", line.rstrip(), re.DOTALL).groups()  # type: ignore[union-attr]
    command = find(name)
    if command is None:
        raise UsageError(f"there is no command /{name}", _instead(name))
    if argument and not command.arguments:
        raise UsageError(f"/{command.name} takes nothing after it", f"type /{command.name} alone, or //{command.name} to send it")
    if not argument and command.arguments and not command.arguments.startswith("["):
        raise _teach(command, f"/{command.name} needs {command.arguments}")
    command.run(talk, argument)


def find(name: str) -> Command | None:
    return next((each for each in COMMANDS if name == each.name or name in each.aliases), None)


def _instead(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [each.name for each in COMMANDS], n=1, cutoff=0.5)
    meant = f"did you mean /{near[0]}? " if near else ""
    return f"{meant}/help lists them; begin with // to send a text that begins with /"


def _teach(command: Command, what: str) -> UsageError:
    return UsageError(what, f"for example {command.example}")


def _one_of(what: str, typed: str, choices: Iterable[str]) -> str:
    """Raises UsageError for what is none of the choices."""
    choices = list(choices)
    if typed in choices:
        return typed
    near = difflib.get_close_matches(typed, choices, n=1, cutoff=0.5)
    raise UsageError(f"{what} {typed} is not known", (f"did you mean {near[0]}? " if near else "") + "use " + ", ".join(choices))


def _help(talk: Talk, name: str) -> None:
    if name:
        command = find(name.removeprefix("/"))
        if command is None:
            raise UsageError(f"there is no command /{name.removeprefix('/')}", _instead(name.removeprefix("/")))
        talk.table([f"{command.synopsis}: {command.help}", *([f"for example {command.example}"] if command.example else [])])
        return
    width = max(len(each.synopsis) for each in COMMANDS)
    talk.table(f"{each.synopsis:<{width}}  {each.help}" for each in COMMANDS)
    talk.table(["", *KEYS])


KEYS = (
    "Enter sends, Alt-Enter or Ctrl-J begins a new line; a paste is one message; Ctrl-G opens $EDITOR; Ctrl-R searches",
    'A block from """ to """ is one message; //text sends "/text"',
    "Ctrl-C cuts an answer or clears the line; twice, or Ctrl-D on an empty line, leaves",
)


def _exit(talk: Talk, _: str) -> None:
    talk.leave()


def _clear(talk: Talk, _: str) -> None:
    talk.chat.clear()
    talk.note("a new conversation; /list shows the old ones")


def _regen(talk: Talk, _: str) -> None:
    talk.answer(talk.chat.regenerate())


def _edit(talk: Talk, text: str) -> None:
    if text:
        talk.answer(talk.chat.edit(text))
        return
    last = next((each.content for each in reversed(talk.chat.messages) if each.role == "user"), None)
    if last is None:
        raise UsageError("there is no message to edit yet", "type one")
    if not talk.interactive:
        raise _teach(_command("edit"), "/edit needs the new text where no line can be edited")
    talk.begin_line(f"/edit {last}")


def _undo(talk: Talk, _: str) -> None:
    taken = talk.chat.undo()
    if taken is None:
        raise UsageError("there is no message to take back", "type one")
    talk.note(f"taken back: {shortened(taken)}")


def _system(talk: Talk, text: str) -> None:
    if text:
        talk.chat.set_system(None if text == "off" else text)
    else:
        talk.table([f"system: {talk.chat.system or '(none)'}"])


def _set(talk: Talk, argument: str) -> None:
    settings = talk.chat.settings
    if not argument:
        talk.table(f"{name} {value}" for name, value in settings.items())
        return
    name, _, value = argument.partition(" ")
    _one_of("the setting", name, settings)
    if value:
        talk.chat.set(name, value.strip())
    talk.table([f"{name} {talk.chat.settings[name]}"])


def _show(talk: Talk, _: str) -> None:
    chat = talk.chat
    settings = ", ".join(f"{name} {value}" for name, value in chat.settings.items())
    system = " ".join((chat.system or "(none)").split())
    talk.table([f"model {chat.model}", f"session {chat.stats().session}", f"system {system}", f"settings {settings}"])
    talk.recall()


def _stats(talk: Talk, _: str) -> None:
    talk.table(stats_lines(talk.chat.model, talk.chat.stats()))


def _model(talk: Talk, name: str) -> None:
    if name:
        talk.answer(talk.chat.use_model(name))
    talk.table([f"model {talk.chat.model}"])


def _draft(talk: Talk, name: str) -> None:
    if name:
        talk.answer(talk.chat.use_draft(name))
    plan = talk.chat.stats().plan
    draft = plan.draft if plan else None
    talk.table(["draft off" if draft is None else f"draft {draft.file or draft.kind}"])


def _read(talk: Talk, name: str) -> None:
    length = talk.chat.read(name)
    talk.note(f"{name}: {length} characters, they go along with the next message")


def _save(talk: Talk, name: str) -> None:
    talk.chat.save(name)
    talk.note(f"saved as {name}; tokencli chat --session {name} goes on with it")


def _list(talk: Talk, search: str) -> None:
    talk.table(session_lines(talk.chat.sessions(search or None)))


def _load(talk: Talk, name: str) -> None:
    talk.answer(talk.chat.load(name))
    talk.recall()


def _delete(talk: Talk, name: str) -> None:
    talk.chat.delete(name)
    talk.note(f"{name} is deleted")


def _export(talk: Talk, argument: str) -> None:
    kind, _, name = argument.partition(" ")
    if kind not in KINDS or not name.strip():
        raise _teach(_command("export"), f"/export needs md or json and a file, not {argument}")
    talk.chat.export(name.strip(), kind)  # type: ignore[arg-type]
    talk.note(f"written to {name.strip()}")


def _think(talk: Talk, word: str) -> None:
    _one_of("/think", word, THINK_WORDS)
    if word in THINKING_VIEWS:
        talk.show_thoughts(word == "show")
    else:
        talk.chat.think(word)  # type: ignore[arg-type]


def _command(name: str) -> Command:
    return next(each for each in COMMANDS if each.name == name)


COMMANDS = (
    Command("help", "[COMMAND]", "this list, or one command", _help, aliases=("?",)),
    Command("exit", "", "leave; the conversation is saved already", _exit, aliases=("quit", "bye")),
    Command("clear", "", "begin a new conversation", _clear),
    Command("regen", "", "another answer to the last message", _regen),
    Command("edit", "[TEXT]", "put TEXT in place of the last message and answer it", _edit, "/edit Why is the sea blue?"),
    Command("undo", "", "take back the last message and its answer", _undo),
    Command("system", "[TEXT|off]", "show or change the system message", _system, "/system Be brief."),
    Command("set", "[SETTING [VALUE]]", "show or change the settings", _set, "/set temperature 0.5"),
    Command("show", "", "model, session, settings, and the last messages", _show),
    Command("stats", "", "what the last answer cost, and what was not computed again", _stats),
    Command("model", "[MODEL]", "show the model, or go on with another", _model, "/model smollm2-135m"),
    Command("draft", "[auto|off|ngram|MODEL]", "show or change what guesses the next tokens", _draft, "/draft ngram"),
    Command("read", "FILE", "send a text file along with the next message", _read, "/read notes.txt"),
    Command("save", "NAME", "give the conversation a name", _save, "/save plans"),
    Command("list", "[TEXT]", "saved conversations, or those with TEXT in them", _list, "/list Paris"),
    Command("load", "SESSION", "go on with a saved conversation", _load, "/load plans"),
    Command("delete", "SESSION", "delete a saved conversation", _delete, "/delete plans"),
    Command("export", "md|json FILE", "write the conversation to a new file", _export, "/export md plans.md"),
    Command("think", "|".join(THINK_WORDS), "show or hide the reasoning; how much of it to ask for", _think, "/think hide"),
)

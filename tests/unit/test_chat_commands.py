"""The commands of a chat: what each asks of the conversation, what it says, and what it teaches."""

import pytest

from tests.unit.fake_chat import FakeChat
from tokencli.cli.chat_commands import COMMANDS, find, perform
from tokencli.cli.chat_words import ChatWords
from tokencli.errors import ModelNotFound, UsageError
from tokencli.world.sessions import StoredMessage


class FakeTalk:
    """Remembers what a command did beside asking the conversation."""

    def __init__(self, *, interactive: bool = True) -> None:
        self.chat = FakeChat()
        self.interactive = interactive
        self.said: list[str] = []
        self.did: list[object] = []

    def answer(self, events) -> None:
        self.did.append([type(event).__name__ for event in events])

    def note(self, text: str) -> None:
        self.said.append(text)

    def table(self, lines) -> None:
        self.said.extend(lines)

    def recall(self) -> None:
        self.did.append("recall")

    def show_thoughts(self, shown: bool) -> None:
        self.did.append(("thoughts", shown))

    def begin_line(self, text: str) -> None:
        self.did.append(("begin", text))

    def leave(self) -> None:
        self.did.append("leave")


def performed(*lines: str, **talk: bool) -> FakeTalk:
    done = FakeTalk(**talk)
    for line in lines:
        perform(line, done)
    return done


def taught(line: str, talk: FakeTalk | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        perform(line, talk or FakeTalk())
    return f"{caught.value.what}; {caught.value.hint}"


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("/regen", ("regenerate", "")),
        ("/edit Why is\nthe sea blue?", ("edit", "Why is\nthe sea blue?")),
        ("/model big", ("use_model", "big")),
        ("/draft ngram", ("use_draft", "ngram")),
        ("/load blue sky", ("load", "blue sky")),
        ("/save my plans ", ("save", "my plans")),
        ("/delete blue sky", ("delete", "blue sky")),
        ("/read a file.txt", ("read", "a file.txt")),
        ("/export md my plans.md", ("export", "my plans.md", "md")),
        ("/export json x", ("export", "x", "json")),
        ("/think off", ("think", "off")),
        ("/think high", ("think", "high")),
        ("/clear", ("clear",)),
    ],
)
def test_a_command_asks_the_conversation(line: str, asked: tuple[str, ...]) -> None:
    assert performed(line).chat.asked == [asked]


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "/exit "])
def test_leaving_has_three_names(line: str) -> None:
    assert performed(line).did == ["leave"]


def test_help_lists_every_command_and_the_keys() -> None:
    said = performed("/help").said
    assert [line.split()[0] for line in said[: len(COMMANDS)]] == [f"/{each.name}" for each in COMMANDS]
    assert "Alt-Enter or Ctrl-J" in "\n".join(said)
    assert performed("/?").said == said


@pytest.mark.parametrize("line", ["/help export", "/help /export"])
def test_help_tells_of_one_command_with_an_example(line: str) -> None:
    assert performed(line).said == [
        "/export md|json FILE: write the conversation to a new file",
        "for example /export md plans.md",
    ]


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.arguments], ids=lambda command: command.name)
def test_what_takes_an_argument_has_an_example_of_itself(command) -> None:
    assert command.name == "help" or command.example.startswith(f"/{command.name} ")


@pytest.mark.parametrize("command", [each for each in COMMANDS if not each.arguments], ids=lambda command: command.name)
def test_a_sentence_after_a_command_that_takes_none_is_not_lost_in_it(command) -> None:
    said = taught(f"/{command.name} the building")
    assert said == f"/{command.name} takes nothing after it; type /{command.name} alone, or //{command.name} to send it"


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each.arguments and each.arguments[0] != "["], ids=lambda command: command.name
)
def test_what_needs_an_argument_says_so_with_an_example(command) -> None:
    assert taught(f"/{command.name}") == f"/{command.name} needs {command.arguments}; for example {command.example}"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/regenerate", "there is no command /regenerate; did you mean /regen? "),
        ("/sytem be brief", "did you mean /system? "),
        ("/MODEL x", "did you mean /model? "),
        ("/usr/bin/env", "begin with // to send a text that begins with /"),
        ("/", "there is no command /; /help lists them"),
        ("/help rege", "there is no command /rege; did you mean /regen? "),
        ("/set temperature warm", "temperature warm is not a number; give a value from 0 to 100"),
        ("/set temprature 1", "the setting temprature is not known; did you mean temperature? use temperature, top-k, overflow"),
        ("/export pdf x", "/export needs md or json and a file, not pdf x; for example /export md plans.md"),
        ("/export md", "/export needs md or json and a file, not md"),
        ("/think hid", "/think hid is not known; did you mean hide? use show, hide, on, off, low, medium, high"),
        ("/undo", "there is no message to take back"),
        ("/edit", "there is no message to edit yet"),
    ],
)
def test_an_error_teaches(line: str, says: str) -> None:
    assert says in taught(line)


def test_what_the_conversation_refuses_comes_through() -> None:
    with pytest.raises(ModelNotFound):
        perform("/model nowhere", talk := FakeTalk())
    assert talk.said == []


def test_edit_alone_opens_the_last_message_or_teaches() -> None:
    talk = FakeTalk()
    talk.chat.messages = (
        StoredMessage("user", "first"),
        StoredMessage("assistant", "a"),
        StoredMessage("user", "two\nlines"),
        StoredMessage("assistant", "b"),
    )
    perform("/edit", talk)
    assert talk.did == [("begin", "/edit two\nlines")]
    talk.interactive = False
    assert "for example /edit Why is the sea blue?" in taught("/edit", talk)


def test_undo_says_what_was_taken_back() -> None:
    talk = FakeTalk()
    talk.chat.messages = (StoredMessage("user", "two\nlines"), StoredMessage("assistant", "b"))
    perform("/undo", talk)
    assert talk.said == ["taken back: two lines"]


def test_the_system_message_is_shown_changed_and_taken_away() -> None:
    talk = performed("/system", "/system Be brief.", "/system")
    assert talk.said == ["system: (none)", "system: Be brief."]
    perform("/system off", talk)
    assert talk.chat.system is None


def test_settings_are_shown_and_changed() -> None:
    assert performed("/set").said == ["temperature 0.8", "top-k 40", "overflow stop"]
    assert performed("/set top-k").said == ["top-k 40"]
    assert performed("/set temperature  0.5").said == ["temperature 0.5"]


def test_show_tells_where_one_is() -> None:
    talk = performed("/system Be\nbrief.", "/show")
    assert talk.said[:3] == ["model tiny", "session now", "system Be brief."]
    assert talk.did == ["recall"]


def test_stats_tell_what_was_not_computed_again() -> None:
    said = "\n".join(performed("/stats").said)
    assert "context  812 of 4096 tokens" in said
    assert "reuse    the whole prompt was known" in said
    assert "memory   512 MiB" in said


def test_think_changes_the_view_or_asks_the_template() -> None:
    talk = performed("/think hide", "/think show", "/think low")
    assert talk.did == [("thoughts", False), ("thoughts", True)]
    assert talk.chat.asked == [("think", "low")]


def test_saved_conversations_are_listed_and_searched() -> None:
    first, second = performed("/list").said
    assert first.startswith("blue sky  20")
    assert first.endswith("   4 messages  tiny  Why is the sky blue?")
    assert second.startswith("plans     20")
    assert performed("/list sky").said == [first]
    assert performed("/list Rome").said == ["no saved conversation"]


def test_load_shows_where_the_conversation_stands() -> None:
    assert performed("/load plans").did == [["Loading"], "recall"]


def test_no_two_commands_share_a_name() -> None:
    names = [name for each in COMMANDS for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))
    assert all(find(name) for name in names)


@pytest.mark.parametrize(
    ("typed", "begun", "words"),
    [
        ("/ex", "/ex", ["/exit", "/export"]),
        ("/model ", "", ["smollm2-135m", "hf:org/repo"]),
        ("/model sm", "sm", ["smollm2-135m"]),
        ("/draft n", "n", ["ngram"]),
        ("/draft s", "s", ["smollm2-135m"]),
        ("/load b", "b", ["blue sky"]),
        ("/load blue s", "blue s", ["blue sky"]),
        ("/delete p", "p", ["plans"]),
        ("/set t", "t", ["temperature", "top-k"]),
        ("/set temperature ", "", []),
        ("/think m", "m", ["medium"]),
        ("/export j", "j", ["json"]),
        ("/export md no tes", "no tes", None),
        ("/read no tes", "no tes", None),
        ("/help und", "und", ["undo"]),
        ("/clear ", "", []),
        ("/nothing ", "", []),
        ("//mo", "//mo", []),
        ("a /mo", "", []),
        ("/system a\n/mo", "", []),
    ],
)
def test_completion_knows_what_comes_next(typed: str, begun: str, words: list[str] | None) -> None:
    assert ChatWords(FakeChat(), ("smollm2-135m", "hf:org/repo")).after(typed) == (begun, words)


def test_completion_is_silent_where_the_sessions_cannot_be_read() -> None:
    class Broken(FakeChat):
        def sessions(self, search=None):
            raise UsageError("the file of sessions cannot be read")

    assert ChatWords(Broken(), ()).after("/load ") == ("", [])

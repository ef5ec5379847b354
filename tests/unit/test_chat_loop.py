"""The chat's loop on streams and in the line editor: what is sent, what is shown where, what ends it and with which code."""

import dataclasses
import io
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import typer
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.unit.fake_chat import Answer, FakeChat, FakeStore, cut, echo, failing
from tests.unit.test_views import ON_CPU, STATS, SUMMARY, Screen
from tokencli.app.chat import ChatStats, ChatWishes
from tokencli.cli.chat import chat_command
from tokencli.cli.chat_input import PromptSource, history_in
from tokencli.cli.chat_lines import HOW_TO_LEAVE, LineSource, block, is_open
from tokencli.cli.chat_loop import ChatLoop
from tokencli.cli.chat_view import status_line
from tokencli.cli.chat_words import ChatWords
from tokencli.cli.terminal import Terminal
from tokencli.core import Event, Loading, Note, Planned, Prefilling, Text
from tokencli.errors import EngineCrashed, EngineMissing, Interrupted, TokencliError, UsageError
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import StoredMessage

ESCAPE, CTRL_C, CTRL_D, CTRL_J, CTRL_R = "\x1b", "\x03", "\x04", "\n", "\x12"
ENTER, ALT_ENTER, UP = "\r", "\x1b\r", "\x1b[A"


def talked(
    typed: str,
    answer: Answer = echo,
    *,
    stdin: type[io.StringIO] = io.StringIO,
    out: type[io.StringIO] = io.StringIO,
    err: type[io.StringIO] = io.StringIO,
    chat: FakeChat | None = None,
    **view: bool,
) -> tuple[int, str, str, list[tuple[str, ...]]]:
    """(exit code, stdout, stderr, what the conversation was asked) of a chat on streams."""
    terminal = Terminal(stdin(typed), out(), err(), {})
    chat = chat or FakeChat(answer=answer)
    code = ChatLoop(chat, LineSource(terminal), terminal, **view).run()
    return code, terminal.stdout.getvalue(), terminal.stderr.getvalue(), chat.asked[1:]


def said(typed: str, **options: object) -> list[str]:
    """The messages that were sent."""
    return [text for name, text in talked(typed, **options)[3] if name == "say"]


class TestBlocks:
    @pytest.mark.parametrize(
        ("text", "unfinished", "inside"),
        [
            ('"""', True, ""),
            ('"""a\nb', True, "a\nb"),
            ('"""a"""', False, "a"),
            ('"""\na\n\nb\n"""', False, "a\n\nb"),
            ('  """a"""  ', False, "a"),
            ('""""""', False, ""),
            ('"""doc""" and more', False, None),
            ('"""doc"""\nx = """y"""', False, None),
            ('say """a', False, None),
            ("", False, None),
        ],
    )
    def test_a_block_is_what_stands_between_the_marks(self, text: str, unfinished: bool, inside: str | None) -> None:
        assert (is_open(text), block(text)) == (unfinished, inside)


class TestWithoutATerminal:
    def test_each_line_is_a_message_and_only_answers_go_to_stdout(self) -> None:
        code, out, err, asked = talked("one\n\n  \ntwo")
        assert (code, out) == (0, "You said: one\nYou said: two\n")
        assert err == f"hm\n\n{SUMMARY}" * 2
        assert asked == [("say", "one"), ("say", "two")]

    @pytest.mark.parametrize("typed", ["", "\n", "   \n\n"])
    def test_nothing_on_stdin_is_the_end(self, typed: str) -> None:
        assert talked(typed) == (0, "", "", [])

    def test_a_process_without_stdin_ends_at_once(self) -> None:
        terminal = Terminal(None, io.StringIO(), io.StringIO(), {})
        assert ChatLoop(FakeChat(), LineSource(terminal), terminal).run() == 0

    def test_a_block_is_one_message_with_its_lines(self) -> None:
        assert said('"""a\n\nb\n"""\nc\n') == ["a\n\nb", "c"]

    def test_a_block_that_the_input_ends_is_sent(self) -> None:
        assert said('"""a\nb') == ["a\nb"]

    def test_in_a_block_a_command_is_text(self) -> None:
        assert said('"""/exit"""\n') == ["/exit"]

    def test_two_strokes_send_one(self) -> None:
        assert said("//etc/hosts\n// note\n") == ["/etc/hosts", "/ note"]

    def test_commands_work_and_the_last_one_may_leave(self) -> None:
        code, out, err, asked = talked("/think off\n/list\n/exit\nnever read\n")
        assert (code, out, asked) == (0, "", [("think", "off")])
        assert "blue sky" in err

    def test_an_unknown_command_is_an_error_and_not_sent(self) -> None:
        code, out, err, asked = talked("/regne\nhi\n")
        assert (code, out, asked) == (0, "You said: hi\n", [("say", "hi")])
        assert err.startswith("error: there is no command /regne; did you mean /regen? ")

    @pytest.mark.parametrize("leave", ["", "\n", "/exit\n"])
    def test_a_failure_of_the_last_message_is_the_exit_code(self, leave: str) -> None:
        code, out, err, _ = talked(f"hi\n{leave}", failing(EngineCrashed("the engine died", "try again")))
        assert (code, out, err) == (1, "half an \n", "error: the engine died; try again\n")

    def test_a_failure_before_the_last_message_is_none(self) -> None:
        assert talked("/nothing\nhi\n")[0] == 0
        assert talked("hi\n/nothing\n")[0] == 2

    def test_quiet_leaves_the_answers(self) -> None:
        assert talked("hi\n", quiet=True, thoughts=False)[1:3] == ("You said: hi\n", "")

    def test_an_interrupt_ends_it_with_what_was_written(self) -> None:
        code, out, _, asked = talked("one\ntwo\n", cut)
        assert (code, out, asked) == (130, "half an\n", [("say", "one")])

    def test_a_reader_that_has_gone_ends_it(self) -> None:
        class Gone(io.StringIO):
            def write(self, _: str) -> int:
                raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            talked("one\n", out=Gone)

    @pytest.mark.parametrize("error", [EngineMissing("llama.cpp is not installed"), Interrupted("interrupted")])
    def test_what_makes_it_impossible_to_begin_is_raised(self, error: TokencliError) -> None:
        class Never(FakeChat):
            def open(self) -> Iterator[Event]:
                raise error
                yield

        with pytest.raises(type(error)):
            talked("hi\n", chat=Never())

    def test_model_text_cannot_command_a_terminal(self) -> None:
        def evil(_: str) -> Iterator[Event]:
            yield Text("reasoning", "a\x1b]52;c;Zm9v\x07")
            yield Text("answer", "b\x1b[2J")

        _, out, err, _ = talked("hi\n", evil, out=Screen, err=Screen)
        assert "b" in out
        assert "\x1b]" not in err
        assert "\x1b[2J" not in out

    def test_thoughts_can_be_hidden_and_shown_again(self) -> None:
        _, _, err, _ = talked("a\n/think hide\nb\n/think show\nc\n")
        assert err.count("hm\n") == 2

    def test_notes_and_progress_are_shown_like_those_of_run(self) -> None:
        def slow(text: str) -> Iterator[Event]:
            yield Note("the context is\nnearly full")
            yield from echo(text)

        _, out, err, _ = talked("hi\n", slow, err=Screen)
        assert out == "You said: hi\n"
        assert "note: the context is nearly full\n" in err
        assert "\r\x1b[Kreading the prompt: 1 of 2 tokens\r\x1b[K" in err
        assert f"\x1b[2m{SUMMARY.rstrip()}\x1b[0m\n" in err

    def test_a_note_in_mid_answer_has_a_line_of_its_own_and_progress_waits(self) -> None:
        def recovering(_: str) -> Iterator[Event]:
            yield Text("answer", "half ")
            yield Prefilling(1, 2)
            yield Note("the engine is started again")
            yield Loading(0.5)
            yield Text("answer", "an answer")

        terminal = Terminal(io.StringIO("hi\n"), both := Screen(), both, {"NO_COLOR": "1"})
        ChatLoop(FakeChat(answer=recovering), LineSource(terminal), terminal, plain=True).run()
        shown = both.getvalue()[both.getvalue().index("half") :]
        assert shown.startswith("half \nnote: the engine is started again\nan answer\n")


class TestAtAPlainTerminal:
    """TERM=dumb: a person types lines."""

    def test_the_prompt_is_on_stderr(self) -> None:
        code, out, err, _ = talked('"""a\nb"""\n', stdin=Screen)
        assert (code, out) == (0, "You said: a\nb\n")
        assert err.startswith("tiny, all layers on the CPU; /help tells what can be typed\n>>> ... ")

    def test_a_cut_answer_is_kept_and_the_conversation_goes_on(self) -> None:
        code, out, err, asked = talked("one\ntwo\n", cut, stdin=Screen)
        assert (code, out, asked) == (0, "half an\nhalf an\n", [("say", "one"), ("say", "two")])
        assert err.count("(interrupted)") == 2

    def test_an_interrupted_load_is_back_at_the_prompt_and_closes_what_it_cut(self) -> None:
        closed = []

        class Slow(FakeChat):
            def use_model(self, name: str) -> Iterator[Event]:
                try:
                    yield Planned(ON_CPU)
                    raise Interrupted("interrupted")
                finally:
                    closed.append(name)

        code, out, err, _ = talked("/model big\nhi\n", stdin=Screen, chat=Slow())
        assert (code, out, closed) == (0, "You said: hi\n", ["big"])
        assert ">>> interrupted\n>>> " in err

    def test_an_interrupt_while_something_is_shown_closes_the_answer(self) -> None:
        closed = []

        def answer(_: str) -> Iterator[Event]:
            try:
                yield Text("answer", "first")
                yield Text("answer", "second")
            finally:
                closed.append(True)

        class Interrupting(io.StringIO):
            def write(self, text: str) -> int:
                if text == "second":
                    raise KeyboardInterrupt
                return super().write(text)

        code, out, _, _ = talked("hi\n", answer, stdin=Screen, out=Interrupting)
        assert (code, out, closed) == (0, "first\n", [True])

    def test_an_error_is_one_line_and_the_code_at_the_end_is_0(self) -> None:
        code, _, err, _ = talked("hi\n", failing(EngineCrashed("it died")), stdin=Screen)
        assert code == 0
        assert "error: it died\n" in err

    def test_ctrl_c_once_says_how_to_leave_and_twice_leaves(self) -> None:
        class Pressed(Screen):
            presses = 1

            def readline(self, *_: int) -> str:
                if self.presses:
                    self.presses -= 1
                    raise KeyboardInterrupt
                return super().readline()

        class Twice(Pressed):
            presses = 2

        code, out, err, _ = talked("hi\n", stdin=Pressed)
        assert (code, out) == (0, "You said: hi\n")
        assert HOW_TO_LEAVE in err
        assert talked("hi\n", stdin=Twice)[:2] == (130, "")

    def test_ctrl_c_just_after_an_answer_does_not_leave(self) -> None:
        class Pressed(LineSource):
            presses = 1

            def read(self, begun: str = "", status: str = "") -> str | None:
                if self.presses:
                    self.presses -= 1
                    raise KeyboardInterrupt
                return super().read(begun, status)

        terminal = Terminal(Screen("hi\n"), io.StringIO(), io.StringIO(), {})
        assert ChatLoop(FakeChat(), Pressed(terminal), terminal).run() == 0
        assert terminal.stdout.getvalue() == "You said: hi\n"

    def test_a_conversation_taken_up_is_shown_from_its_last_message(self) -> None:
        chat = FakeChat()
        chat.messages = (
            StoredMessage("user", "a"),
            StoredMessage("assistant", "b"),
            StoredMessage("user", "old\nquestion"),
            StoredMessage("assistant", "old answer"),
        )
        _, out, err, _ = talked("", stdin=Screen, out=Screen, chat=chat, plain=True)
        assert out == "old answer\n"
        assert "4 messages so far; the last of them:\n>>> old question\n" in err
        assert talked("", chat=chat)[1] == "", "stdout has only new answers where nobody reads along"


class Keyboard:
    """A line editor on a pipe: what is typed, and what came of it."""

    def __init__(self, pipe, folder: Path | None = None) -> None:
        self._pipe = pipe
        self.chat = FakeChat()
        self.terminal = Terminal(io.StringIO(), Screen(), Screen(), {})
        history = history_in(folder) if folder else InMemoryHistory()
        words = ChatWords(self.chat, ("smollm2-135m",))
        self.source = PromptSource(self.terminal, history, words, pipe, DummyOutput())

    def types(self, *keys: str) -> list[str | None]:
        """What is read; all keys are there from the start, as when they were typed ahead."""
        self._pipe.send_text("".join(keys))
        read: list[str | None] = []
        while not read or read[-1] is not None:
            read.append(self.source.read())
        return read[:-1]

    def when(self, text: str, keys: str, *, offered: bool = False) -> None:
        """Types the keys once, as soon as the text stands in the line (and completions are offered): that may take its time."""
        buffer = self.source._session.default_buffer
        waiting = [keys]

        def look(_: object) -> None:
            if waiting and buffer.text == text and (not offered or (buffer.complete_state and buffer.complete_state.completions)):
                self._pipe.send_text(waiting.pop())

        buffer.on_text_changed += look
        buffer.on_completions_changed += look

    def talks(self, *keys: str) -> int:
        self._pipe.send_text("".join(keys))
        return ChatLoop(self.chat, self.source, self.terminal).run()


@pytest.fixture
def keyboard() -> Iterator[Keyboard]:
    with create_pipe_input() as pipe:
        yield Keyboard(pipe)


class TestLineEditor:
    def test_enter_sends_and_typed_ahead_lines_wait_for_their_turn(self, keyboard: Keyboard) -> None:
        assert keyboard.types("one", ENTER, "two", ENTER, CTRL_D) == ["one", "two"]

    @pytest.mark.parametrize("new_line", [ALT_ENTER, CTRL_J])
    def test_a_message_can_have_lines(self, keyboard: Keyboard, new_line: str) -> None:
        assert keyboard.types("a", new_line, "b", ENTER, CTRL_D) == ["a\nb"]

    @pytest.mark.parametrize("ending", ["\r", "\n", "\r\n"])
    def test_a_paste_of_400_lines_is_one_message(self, keyboard: Keyboard, ending: str) -> None:
        lines = [f"line {number} 你好" for number in range(400)]
        paste = f"{ESCAPE}[200~{ending.join(lines)}{ending}{ESCAPE}[201~"
        assert keyboard.types(paste, "!", ENTER, CTRL_D) == ["\n".join([*lines, "!"])]

    def test_a_block_is_open_until_its_end(self, keyboard: Keyboard) -> None:
        assert keyboard.types('"""a', ENTER, ENTER, 'b"""', ENTER, CTRL_D) == ['"""a\n\nb"""']

    def test_text_that_is_no_utf_8_can_be_sent(self, keyboard: Keyboard) -> None:
        keyboard._pipe.send_bytes(b"a\xffb\r\x04")
        assert keyboard.source.read() == "a\ufffdb"

    def test_ctrl_d_on_an_empty_line_leaves_with_0(self, keyboard: Keyboard) -> None:
        assert keyboard.talks("hi", ENTER, CTRL_D) == 0
        assert keyboard.chat.asked == [("open",), ("say", "hi")]

    def test_ctrl_d_in_a_line_does_not(self, keyboard: Keyboard) -> None:
        assert keyboard.types("hi", CTRL_D, ENTER, CTRL_D) == ["hi"]

    def test_ctrl_c_clears_the_line_and_twice_leaves_with_130(self, keyboard: Keyboard) -> None:
        assert keyboard.talks("wrong", CTRL_C, "right", ENTER, "wrong", CTRL_C, CTRL_C) == 130
        assert keyboard.chat.asked == [("open",), ("say", "right")]

    def test_ctrl_c_again_after_typing_clears_again(self, keyboard: Keyboard) -> None:
        assert keyboard.types("a", CTRL_C, "b", CTRL_C, "c", ENTER, CTRL_D) == ["c"]

    def test_history_is_searched_with_ctrl_r_across_sessions(self, tmp_path: Path) -> None:
        for keys, expected in (
            (("find the\nneedle".replace("\n", ALT_ENTER), ENTER, "hay", ENTER, CTRL_D), ["find the\nneedle", "hay"]),
            ((CTRL_R, "needle", ENTER, ENTER, CTRL_D), ["find the\nneedle"]),
            ((UP, UP, UP, ENTER, CTRL_D), ["hay"]),
        ):
            with create_pipe_input() as pipe:
                assert Keyboard(pipe, tmp_path / "new").types(*keys) == expected
        mode = stat.S_IMODE((tmp_path / "new" / "chat-history").stat().st_mode)
        assert mode == 0o600

    def test_a_history_that_cannot_be_written_stays_in_memory(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert isinstance(history_in(tmp_path / "file"), InMemoryHistory)
        history = history_in(tmp_path / "gone")
        (tmp_path / "gone" / "chat-history").unlink()
        (tmp_path / "gone").rmdir()
        history.append_string("kept")
        assert history.get_strings() == ["kept"]

    def test_the_editor_gets_the_text_and_gives_it_back(
        self, keyboard: Keyboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        editor = tmp_path / "editor"
        editor.write_text('#!/bin/sh\nprintf "%s from the editor\\n" "$(cat "$1")" > "$1.new" && mv "$1.new" "$1"\n')
        editor.chmod(0o700)
        monkeypatch.setenv("VISUAL", str(editor))
        keyboard.when("text from the editor", ENTER)
        keyboard._pipe.send_text("text\x07")
        assert keyboard.source.read() == "text from the editor"

    def test_edit_alone_brings_the_last_message_back_into_the_line(self, keyboard: Keyboard) -> None:
        assert keyboard.talks("helo", ENTER, "/edit", ENTER, "!", ENTER, CTRL_D) == 0
        assert keyboard.chat.asked[1:] == [("say", "helo"), ("edit", "helo!")]

    def test_tab_completes(self, keyboard: Keyboard) -> None:
        keyboard.when("/mod", "\t", offered=True)
        keyboard.when("/model", " sm")
        keyboard.when("/model sm", "\t", offered=True)
        keyboard.when("/model smollm2-135m", ENTER)
        keyboard._pipe.send_text("/mod")
        assert keyboard.source.read() == "/model smollm2-135m"

    def test_files_are_completed(self, keyboard: Keyboard, tmp_path: Path) -> None:
        (tmp_path / "notes on tea.txt").write_text("")
        typed = Document(f"/read {tmp_path}/notes o")
        (found,) = keyboard.source._session.completer.get_completions(typed, CompleteEvent())
        assert found.text == "n tea.txt"


class TestStatusLine:
    def test_what_is_known_is_shown(self) -> None:
        full = ChatStats(ON_CPU, STATS, 812, 2, None, 3 << 29, "now")
        assert status_line("tiny", full) == "tiny | 812 of 4096 tokens | 12.3 tokens/s | 1.5 GiB"

    def test_what_is_not_known_is_left_out(self) -> None:
        assert status_line("tiny", ChatStats(None, None, 0, 0, None, None, "now")) == "tiny | 0 of ? tokens"

    def test_acceptance_stands_there_when_there_is_a_draft(self) -> None:
        drafting = dataclasses.replace(STATS, drafted=8, accepted=5)
        assert "draft 62 %" in status_line("tiny", ChatStats(ON_CPU, drafting, 1, 2, None, None, "now"))


class TestCommand:
    """The options: what becomes of them."""

    @staticmethod
    def typed(*arguments: str, stdin: str = "") -> tuple[int, str, str, FakeChat | FakeStore | None]:
        made: list[FakeChat | FakeStore] = []

        def make(kind: type, given: object, _confirm: object = None) -> FakeChat | FakeStore:
            made.append(kind(given))
            return made[-1]

        terminal = Terminal(io.StringIO(stdin), io.StringIO(), io.StringIO(), {})
        app = typer.Typer(add_completion=False)
        app.command("chat")(chat_command(terminal, partial(make, FakeChat), partial(make, FakeStore)))
        code = typer.main.get_command(app)(list(arguments), standalone_mode=False)
        return code or 0, terminal.stdout.getvalue(), terminal.stderr.getvalue(), made[-1] if made else None

    def test_a_message_is_answered_and_the_conversation_closed(self) -> None:
        code, out, _, chat = self.typed("tiny", stdin="hi\n")
        assert (code, out) == (0, "You said: hi\n")
        assert chat.asked == [("open",), ("say", "hi"), ("close",)]

    def test_the_exit_code_is_that_of_the_last_message(self) -> None:
        assert self.typed("tiny", stdin="/nothing\n")[0] == 2

    def test_what_is_not_given_is_not_asked_for(self) -> None:
        assert self.typed("tiny")[3].wishes == ChatWishes("tiny")
        assert self.typed("--continue")[3].wishes == ChatWishes(None, resume=True)
        assert self.typed("--session", "plans")[3].wishes == ChatWishes(None, session="plans")

    def test_what_is_given_is_asked_for(self) -> None:
        wishes = self.typed(
            *("tiny", "--session", "s", "--system", "Be brief.", "--max-tokens", "9", "--stop", "a", "--stop", "b"),
            *(
                "--template",
                "chatml",
                "--overflow",
                "drop",
                "--think",
                "low",
                "--max-thinking",
                "5",
                "--top-k",
                "7",
                "--seed",
                "3",
            ),
            *("--gpu-layers", "0", "--context", "512", "--draft", "ngram", "--draft-tokens", "4", "--kv-type", "q8_0"),
        )[3].wishes
        assert (wishes.session, wishes.system, wishes.max_tokens, wishes.stop) == ("s", "Be brief.", 9, ("a", "b"))
        assert (wishes.template, wishes.overflow, wishes.thinking, wishes.max_thinking) == ("chatml", "drop", "low", 5)
        assert (wishes.sampling.top_k, wishes.sampling.temperature, wishes.sampling.seed) == (7, 0.8, 3)
        assert wishes.wishes == Wishes(gpu_layers=0, context=512, draft="ngram", draft_tokens=4, kv_type="q8_0")

    def test_a_default_that_is_typed_is_given(self) -> None:
        assert self.typed("tiny", "--temperature", "0.8")[3].wishes.sampling.temperature == 0.8

    @pytest.mark.parametrize(
        ("option", "shown"), [(("--think", "hide"), False), (("--think", "show"), True), (("--quiet",), False)]
    )
    def test_thoughts_are_shown_unless_hidden(self, option: tuple[str, ...], shown: bool) -> None:
        _, _, err, chat = self.typed("tiny", *option, stdin="hi\n")
        assert (("hm" in err), chat.wishes.thinking) == (shown, "on")

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (
                (),
                "begin with tokencli chat smollm2-135m, or go on with tokencli chat --continue",
            ),
            (("--continue", "--session", "x"), "--continue is the latest conversation"),
            (("tiny", "--overflow", "cut"), "--overflow cut is not known; use stop, drop, compact"),
            (("tiny", "--think", "hard"), "--think hard is not known; use show, hide, on, off"),
            (("tiny", "--max-thinking", "-1"), "--max-thinking -1 is out of range"),
            (("tiny", "--top-p", "2"), "--top-p 2.0 is out of range"),
            (("tiny", "--kv-type", "q1"), "--kv-type q1 is not known; use f16, q8_0, q4_0"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, arguments: tuple[str, ...], says: str) -> None:
        with pytest.raises(UsageError) as caught:
            self.typed(*arguments)
        assert says in f"{caught.value.what}; {caught.value.hint}"

    def test_sessions_are_listed_searched_and_deleted_without_a_model(self) -> None:
        code, out, err, made = self.typed("--list")
        assert (code, len(out.splitlines()), err, made.asked) == (0, 2, "the file was moved\n", [("close",)])
        assert self.typed("--search", "sky")[1] == out.splitlines(keepends=True)[0]
        assert self.typed("--delete", "plans")[3].asked == [("delete", "plans"), ("close",)]

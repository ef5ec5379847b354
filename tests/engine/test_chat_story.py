"""The chat's story on the real engine: turns, what is kept, what a crash and the context's end do to it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokencli.app.chat import Chat, ChatWishes
from tokencli.app.world import World
from tokencli.core import Done, Event, Model, Note, Sampling, Text
from tokencli.engine.client import Engine
from tokencli.errors import DoesNotFit, EngineCrashed, ModelNotFound, UsageError
from tokencli.plan.choose import Wishes
from tokencli.world.sessions import Sessions
from tokencli.world.states import States

GREEDY = Sampling(temperature=0)


class Engines:
    """Starts real engines and remembers them, to be killed by tests."""

    def __init__(self) -> None:
        self.started: list[Engine] = []

    def __call__(self) -> Engine:
        self.started.append(Engine())
        return self.started[-1]

    def kill(self) -> None:
        os.kill(self.started[-1].process_id, signal.SIGKILL)


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def start(tmp_path: Path, engines: Engines) -> Iterator[Callable[..., Chat]]:
    """Opens chats whose conversations and caches are the test's own."""
    world = World(
        start_engine=engines,
        cache=tmp_path / "cache",
        open_sessions=lambda: Sessions.open(tmp_path / "data" / "sessions.db"),
        open_states=lambda: States(tmp_path / "states"),
    )
    chats: list[Chat] = []

    def begin(model: Model | None, context: int = 2048, draft: str | None = None, **wishes: object) -> Chat:
        placing = Wishes(context=context, threads=1, draft=draft)
        wishes = {"sampling": GREEDY, "max_tokens": 24, **wishes}
        chats.append(Chat(ChatWishes(model.file if model else None, placing, **wishes), world))
        list(chats[-1].open())
        return chats[-1]

    yield begin
    for chat in chats:
        chat.close()


def texts(events: Iterator[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text) and event.kind == "answer")


def told(events: Iterator[Event]) -> tuple[str, list[str], Done]:
    """The answer, the notes and the Done of one turn."""
    seen = list(events)
    assert isinstance(seen[-1], Done)
    return texts(iter(seen)), [event.text for event in seen if isinstance(event, Note)], seen[-1]


@pytest.fixture
def letters(tiny: Callable[..., Model]) -> Model:
    return tiny("llama", letters=True)


def test_turns_are_kept_and_computed_once(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters, system="Be brief.")
    first = texts(chat.say("Hello there, how are you today?"))
    second, _, done = told(chat.say("And now?"))
    assert [(each.role, each.content) for each in chat.messages] == [
        ("user", "Hello there, how are you today?"),
        ("assistant", first),
        ("user", "And now?"),
        ("assistant", second),
    ]
    new = done.stats.prompt_tokens - done.stats.cached_tokens
    assert new <= len("E_user\nAnd now?E_\nassistant\n") + 2
    assert chat.stats().reuse == (
        f"{done.stats.cached_tokens} of {done.stats.prompt_tokens} tokens of the prompt were not computed again: "
        "all that had been computed is still right"
    )


def test_a_conversation_reopens_where_it_was_without_a_new_prefill(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters)
    texts(chat.say("Tell me of the harbour. " * 20))
    before = chat.messages
    chat.close()
    again = start(None, resume=True)
    assert again.messages == before
    assert again.model == letters.file
    _, _, done = told(again.say("And now?"))
    assert done.stats.prompt_tokens - done.stats.cached_tokens < 60


def test_a_cache_of_another_kind_is_not_taken_up(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters, session="harbour")
    texts(chat.say("Tell me of the harbour. " * 20))
    chat.close()
    again = start(letters, session="harbour", draft="ngram")
    _, _, done = told(again.say("And now?"))
    assert done.stats.cached_tokens == 0
    assert "draft" in str(again.stats().reuse), again.stats().reuse


def test_regenerate_edit_and_undo(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters, sampling=Sampling(temperature=1, seed=3))
    first = texts(chat.say("Hello"))
    other, _, done = told(chat.regenerate())
    assert other != first
    assert done.stats.cached_tokens == done.stats.prompt_tokens - 1
    assert [each.content for each in chat.messages] == ["Hello", other]
    texts(chat.edit("Goodbye"))
    assert chat.messages[0].content == "Goodbye"
    assert chat.undo() == "Goodbye"
    assert chat.undo() is None
    assert chat.messages == ()
    with pytest.raises(UsageError, match="there is no message yet"):
        list(chat.regenerate())


def test_a_cut_answer_stays_as_it_was_shown(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters, max_tokens=None)
    events = chat.say("Hello")
    shown = ""
    for event in events:
        shown += event.text if isinstance(event, Text) else ""
        if len(shown) > 10:
            events.close()
    assert chat.messages[-1].content == shown
    assert chat.messages[-1].cut
    chat.set("max-tokens", "5")
    assert texts(chat.say("Go on"))
    assert len(chat.messages) == 4


def test_a_killed_engine_costs_no_word_of_the_answer(
    start: Callable[..., Chat], scripted: Callable[..., Model], engines: Engines
) -> None:
    model = scripted([b"x", b"y"], end=False)
    chat = start(model, max_tokens=1500)
    shown, notes = "", []
    for event in chat.say("Hello"):
        shown += event.text if isinstance(event, Text) else ""
        if isinstance(event, Note):
            notes.append(event.text)
        if isinstance(event, Text) and len(shown) == 10:
            engines.kill()
    assert len(engines.started) == 2
    assert len(shown) == 1500, "the limit counts what was shown before"
    assert chat.messages[-1].content == shown
    (note,) = notes
    assert note.startswith("the engine was killed by SIGKILL while generating")
    assert note.endswith("; the engine is started again, and the answer goes on")


def test_an_engine_that_always_dies_ends_the_turn_and_nothing_is_lost(
    start: Callable[..., Chat], letters: Model, engines: Engines
) -> None:
    chat = start(letters, context=4096, max_tokens=400)
    shown, notes = "", []
    events = chat.say("Hello")
    while True:
        try:
            event = next(events)
        except EngineCrashed:
            break
        if isinstance(event, Note):
            notes.append(event.text)
        if isinstance(event, Text):
            shown += event.text
            engines.kill()
    assert len(engines.started) == 3
    assert notes[1].endswith("started again with a context of 2048, and the answer goes on"), "the second time with less"
    assert chat.messages[-1].content == shown
    chat.set("max-tokens", "5")
    assert texts(chat.say("Still there?"))


def test_the_contexts_end_is_told_before_it_comes_and_when_it_does(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters, context=256, max_tokens=None)
    _, notes, done = told(chat.say("x" * 100))
    assert done.finish_reason == "length"
    assert notes[-1].startswith("the context of 256 tokens is full, the answer was cut: /clear begins anew")
    chat.undo()
    _, notes, _ = told(chat.say("y" * 100))
    assert any("the answer was cut" in note for note in notes), "every time that it happens"
    with pytest.raises(DoesNotFit, match=r"the conversation has 2.. tokens, the context holds 256"):
        list(chat.say("More?"))
    assert chat.undo() == "More?"
    chat.set("overflow", "drop")
    chat.set("max-tokens", "8")
    _, notes, _ = told(chat.say("More?"))
    assert "the context of 256 tokens is full: the oldest 2 messages are left out from now on" in notes
    assert len(chat.messages) == 4, "the conversation itself keeps all"
    near = start(letters, context=256, max_tokens=20)
    _, notes, _ = told(near.say("x" * 170))
    assert notes[-1].startswith("2"), notes
    assert "of the context's 256 tokens are used: /clear" in notes[-1]


def test_what_is_dropped_is_remembered_when_the_conversation_is_reopened(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters, context=256, max_tokens=20, overflow="drop")
    for text in ("a" * 60, "b" * 60, "c" * 60):
        texts(chat.say(text))
    used = chat.stats().context_used
    assert used < 256
    chat.close()
    again = start(letters, context=256, max_tokens=20, overflow="drop", resume=True)
    _, notes, done = told(again.say("d"))
    assert done.stats.prompt_tokens < 256
    assert not [note for note in notes if "left out" in note], "nothing more had to go"


def test_the_oldest_messages_are_summed_up(start: Callable[..., Chat], scripted: Callable[..., Model]) -> None:
    """The scripted model writes the same as a summary: it stands in front of the rest from then on."""
    model = scripted([bytes([letter]) for letter in b"All well."])
    chat = start(model, context=768, overflow="compact")
    for text in ("a" * 150, "b" * 150, "c" * 150, "d" * 150):
        _, notes, done = told(chat.say(text))
    assert notes == ["the context of 768 tokens is full: the oldest 4 messages are summed up"]
    assert "Summary of the conversation so far:\nAll well." in chat._fitting.request(chat._settings, 0).messages[0].content
    assert done.stats.prompt_tokens < 768
    assert len(chat.messages) == 8


def test_an_answer_goes_on_over_the_contexts_end(start: Callable[..., Chat], scripted: Callable[..., Model]) -> None:
    model = scripted([b"x"], end=False)
    chat = start(model, context=256, max_tokens=200, overflow="drop")
    texts(chat.say("a" * 20))
    chat.set("max-tokens", "150")
    answer, notes, _ = told(chat.say("b" * 20))
    assert answer == "x" * 150
    assert any("left out from now on" in note for note in notes)


def test_another_model_and_another_draft_in_place(start: Callable[..., Chat], letters: Model, tiny: Callable[..., Model]) -> None:
    chat = start(letters)
    texts(chat.say("Hello"))
    other = tiny("sliding", letters=True)
    list(chat.use_model(other.file))
    assert chat.model == other.file
    assert len(chat.messages) == 2
    assert texts(chat.say("And now?"))
    with pytest.raises(ModelNotFound):
        list(chat.use_model("no-such-model.gguf"))
    assert chat.model == other.file
    list(chat.use_draft("ngram"))
    plan = chat.stats().plan
    assert plan
    assert plan.draft
    assert plan.draft.kind == "ngram"
    assert texts(chat.say("Again?"))


def test_saved_conversations_are_listed_loaded_and_deleted(start: Callable[..., Chat], letters: Model) -> None:
    chat = start(letters)
    texts(chat.say("The harbour"))
    chat.save("sea")
    chat.clear()
    assert chat.messages == ()
    texts(chat.say("The mountain"))
    assert [(line.first, line.messages) for line in chat.sessions()] == [("The mountain", 2), ("The harbour", 2)]
    assert [line.name for line in chat.sessions("HARBOUR")] == ["sea"]
    list(chat.load("sea"))
    assert chat.messages[0].content == "The harbour"
    _, _, done = told(chat.say("And now?"))
    assert done.stats.cached_tokens > 20, "its cache was kept when the other one began"
    chat.clear()
    chat.delete("sea")
    assert chat.sessions("harbour") == []
    with pytest.raises(UsageError, match="there is no saved conversation 'sea'"):
        list(chat.load("sea"))


def test_a_model_without_template_is_not_guessed_for(start: Callable[..., Chat], tiny: Callable[..., Model]) -> None:
    from tests import tiny_vocabulary

    unmarked = [text.replace(b"<|im_", b"<|turn_") for text in tiny_vocabulary.of_size(512).texts]
    model = tiny(chat_template=None, extra={"tokenizer.ggml.tokens": unmarked})
    with pytest.raises(UsageError, match="has no chat template") as caught:
        start(model)
    assert "--template chatml|llama3" in caught.value.hint
    assert texts(start(model, template="chatml").say("Hello"))
    with pytest.raises(UsageError, match="no known template"):
        start(model, template="nonsense")


def test_a_read_file_comes_with_the_next_message_and_exports_hold_all(
    start: Callable[..., Chat], letters: Model, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("buy bread")
    chat = start(letters)
    assert chat.read(str(notes)) == 9
    texts(chat.say("What must I buy?"))
    assert chat.messages[0].content == "notes.txt:\n```\nbuy bread\n```\n\nWhat must I buy?"
    with pytest.raises(UsageError, match="cannot be read"):
        chat.read(str(tmp_path / "nothing.txt"))
    for name in ("~no-such-user/notes.txt", "no\0tes"):  # no traceback, whatever is typed
        with pytest.raises(UsageError):
            chat.read(name)
        with pytest.raises(UsageError):
            chat.export(name, "md")
    chat.export(str(tmp_path / "out.md"), "md")
    assert "## You\n\nnotes.txt" in (tmp_path / "out.md").read_text()
    with pytest.raises(UsageError, match="exists"):
        chat.export(str(tmp_path / "out.md"), "json")
    chat.export(str(tmp_path / "out.json"), "json")
    assert '"role": "user"' in (tmp_path / "out.json").read_text()

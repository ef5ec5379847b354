"""A draft changes the speed and never the text: token equality, plain against drafted, on the real llama.cpp."""

import dataclasses
import json
import random
import re
from collections.abc import Callable, Iterator

import pytest

from tests import tiny_models
from tests.engine.conftest import answer, ask, load, plan_for
from tokencli.core import Done, Draft, Event, Model, Plan, Request, Text
from tokencli.engine.client import Engine

DEPTHS = (1, 2, 3, 5, 8, 16)
KINDS = tiny_models.KINDS


def with_model(draft: Model, depth: int = 4) -> Draft:
    return Draft("model", draft.file, None, depth, 0.0)


def ngram(depth: int = 4) -> Draft:
    return Draft("ngram", None, None, depth, 0.0)


def prompts(count: int, seed: int = 0) -> list[str]:
    """Random texts, some of which repeat themselves, as prompts that lookup finds something in."""
    source = random.Random(seed)
    texts = []
    for _ in range(count):
        words = ["".join(source.choices("abcdefgh ", k=source.randint(1, 9))) for _ in range(source.randint(1, 12))]
        texts.append(" ".join(words * source.choice((1, 1, 3))))
    return texts


def answers(plan: Plan, requests: list[Request]) -> list[tuple[str, Done]]:
    with Engine() as engine:
        load(engine, plan)
        return [answer(engine.generate(request))[::2] for request in requests]


def requests(count: int, tokens: int = 24) -> list[Request]:
    """Greedy and sampled, a seed of its own each."""
    return [
        ask(text, temperature=temperature, seed=number, max_tokens=tokens)
        for number, text in enumerate(prompts(count))
        for temperature in (0, 0.8)
    ]


@pytest.fixture(scope="module")
def plain(tiny: Callable[..., Model]) -> Callable[[str], list[str]]:
    """The texts of plain decoding, by kind of model, made once."""
    texts: dict[str, list[str]] = {}

    def of(kind: str) -> list[str]:
        if kind not in texts:
            texts[kind] = [text for text, _ in answers(plan_for(tiny(kind)), requests(12))]
        return texts[kind]

    return of


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_good_draft_gives_the_text_of_plain_decoding(
    tiny: Callable[..., Model], plain: Callable[[str], list[str]], kind: str, depth: int
) -> None:
    good = tiny(kind if kind != "hybrid" else "llama", **({"noise": 0.02} if kind != "hybrid" else {}))
    drafted = answers(plan_for(tiny(kind), draft=with_model(good, depth)), requests(12))
    assert [text for text, _ in drafted] == plain(kind)
    accepted = sum(done.stats.accepted for _, done in drafted)
    assert sum(done.stats.drafted for _, done in drafted) > 0
    if kind != "hybrid":
        assert accepted > 0


@pytest.mark.parametrize("draft", ["bad", "lookup", "itself"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_draft_gives_the_text_of_plain_decoding(
    tiny: Callable[..., Model], plain: Callable[[str], list[str]], kind: str, draft: str
) -> None:
    same = tiny(kind) if kind != "hybrid" else tiny("llama")
    chosen = {"bad": with_model(tiny("llama", seed=99)), "lookup": ngram(), "itself": with_model(same)}[draft]
    drafted = answers(plan_for(tiny(kind), draft=chosen), requests(12))
    assert [text for text, _ in drafted] == plain(kind)
    if draft == "itself" and kind != "hybrid":
        stats = [done.stats for _, done in drafted]
        assert sum(s.accepted for s in stats) > 0.95 * sum(s.drafted for s in stats)


def adapting(draft: Draft) -> Draft:
    return dataclasses.replace(draft, adaptive=True, max_tokens=8)


@pytest.mark.parametrize("draft", ["good", "bad", "lookup", "itself"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_depth_chosen_while_it_runs_gives_the_text_of_plain_decoding(
    tiny: Callable[..., Model], plain: Callable[[str], list[str]], kind: str, draft: str
) -> None:
    same = kind if kind != "hybrid" else "llama"
    models = {"good": tiny(same, noise=0.02), "bad": tiny("llama", seed=99), "itself": tiny(same)}
    chosen = adapting(with_model(models[draft]) if draft in models else ngram())
    drafted = answers(plan_for(tiny(kind), draft=chosen), requests(12))
    assert [text for text, _ in drafted] == plain(kind)
    if draft != "lookup":
        assert sum(done.stats.drafted for _, done in drafted) > 0, "it was tried"


def test_what_was_learned_is_told_and_taken_up(tiny: Callable[..., Model]) -> None:
    plan = plan_for(tiny(), draft=adapting(with_model(tiny(noise=0.02))))
    with Engine() as engine:
        load(engine, plan)
        done = answer(engine.generate(ask("hi", max_tokens=60)))[2]
    assert done.pace is not None
    assert done.pace["rounds"] > 5
    broken = json.loads(json.dumps(done.pace).replace("null", "1"))
    broken["sources"]["model"]["guesses"]["made"] = [["x"]]
    for pace, begins in ((done.pace, done.pace["rounds"]), (broken, 0), ({}, 0), ("no pace", 0), (None, 0)):
        with Engine() as engine:
            list(engine.load(plan, pace=pace))
            again = answer(engine.generate(ask("hi", max_tokens=8)))[2]
        assert again.pace is not None
        assert begins < again.pace["rounds"] <= begins + 8
    assert answers(plan_for(tiny(), draft=with_model(tiny())), [ask("hi", max_tokens=3)])[0][1].pace is None, "a fixed depth"


def test_a_draft_that_does_not_pay_is_turned_off_and_said_once(tiny: Callable[..., Model]) -> None:
    """Many times as dear as the target, and of random weights."""
    dear = tiny("llama", seed=99, embedding=512, layers=8)
    wanted = [ask("once upon a time", temperature=0, max_tokens=150)] * 2
    expected = answers(plan_for(tiny()), wanted)
    found = answers(plan_for(tiny(), draft=adapting(with_model(dear))), wanted)
    assert [text for text, _ in found] == [text for text, _ in expected]
    notes = [note for _, done in found for note in done.notes]
    assert len(notes) == 1
    assert re.search(r"the draft is off: measured 0\.\d+x the speed of plain decoding", notes[0])
    assert sum(done.stats.drafted for _, done in found) < 60


def test_an_answer_tells_where_its_time_went(tiny: Callable[..., Model]) -> None:
    ((_, done),) = answers(plan_for(tiny(), draft=with_model(tiny())), [ask("hi", max_tokens=40)])
    stats = done.stats
    assert stats.draft_seconds
    assert stats.verify_seconds
    assert stats.python_seconds is not None
    assert stats.accepted_length == stats.accepted / (stats.drafted / 4)
    assert set(stats.depths) == {4.0}
    ((_, plain),) = answers(plan_for(tiny()), [ask("hi", max_tokens=40)])
    assert (plain.stats.draft_seconds, plain.stats.depths, plain.stats.accepted_length, plain.stats.gain) == (0.0, (), None, None)


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_long_texts_beyond_the_window_stay_equal(tiny: Callable[..., Model], kind: str) -> None:
    wanted = [ask("once upon a time " * 20, temperature=temperature, max_tokens=300) for temperature in (0, 0.8)]
    model = tiny(kind)
    expected = [text for text, _ in answers(plan_for(model), wanted)]
    for draft in (ngram(8), with_model(tiny("llama", seed=99), 3)):
        assert [text for text, _ in answers(plan_for(model, draft=draft), wanted)] == expected


def test_a_real_model_with_itself_as_draft_gives_the_same_text(smollm2: Model) -> None:
    wanted = [ask(text, max_tokens=24) for text in ("Why is the sky blue?", "Count to ten.")]
    expected = [text for text, _ in answers(plan_for(smollm2), wanted)]
    drafted = answers(plan_for(smollm2, draft=with_model(smollm2)), wanted)
    assert [text for text, _ in drafted] == expected
    assert all(done.stats.acceptance and done.stats.acceptance > 0.9 for _, done in drafted)
    assert all(done.stats.tokens_per_emission and done.stats.tokens_per_emission > 3 for _, done in drafted)


def end_in_run(scripted: Callable[..., Model], pieces: list[bytes], **options: object) -> tuple[str, Done]:
    """The answer of a scripted model drafted by itself: every guess is right, so ends fall inside accepted runs."""
    model = scripted(pieces, **({"end": options.pop("end")} if "end" in options else {}))
    (found,) = answers(plan_for(model, draft=with_model(model, 8), context=256), [ask("\n", **options)])
    return found


def test_the_end_of_generation_inside_an_accepted_run(scripted: Callable[..., Model]) -> None:
    text, done = end_in_run(scripted, [b"a", b"b", b"c"])
    assert (text, done.finish_reason) == ("abc", "stop")


def test_a_stop_string_inside_an_accepted_run(scripted: Callable[..., Model]) -> None:
    text, done = end_in_run(scripted, [b"one ", b"be", b"ta ", b"gamma ", b"delta"], stop=("beta gamma",))
    assert (text, done.finish_reason) == ("one ", "stop")


def test_max_tokens_inside_an_accepted_run(scripted: Callable[..., Model]) -> None:
    text, done = end_in_run(scripted, [b"a", b"b", b"c", b"d", b"e", b"f"], max_tokens=4)
    assert (text, done.finish_reason, done.stats.tokens) == ("abcd", "length", 4)


def test_the_contexts_end_inside_an_accepted_run(scripted: Callable[..., Model]) -> None:
    text, done = end_in_run(scripted, [b"x"], end=False)
    assert done.finish_reason == "length"
    assert done.stats.prompt_tokens + done.stats.tokens == 257
    assert text == "x" * done.stats.tokens


def events_of(plan: Plan, request: Request) -> Iterator[Event]:
    with Engine() as engine:
        loaded = load(engine, plan)
        yield loaded
        yield from engine.generate(request)


def test_a_draft_that_does_not_load_is_a_note_and_the_answer_comes(tiny: Callable[..., Model], tmp_path: object) -> None:
    broken = Draft("model", str(tmp_path) + "/broken.gguf", None, 4, 0.0)
    loaded, *_, done = events_of(plan_for(tiny(), draft=broken), ask("hi", max_tokens=5))
    assert "without the draft: " in loaded.notes[0]
    assert not loaded.draft
    assert (done.stats.tokens, done.stats.drafted) == (5, 0)


def test_a_recurrent_draft_is_refused_with_the_reason(tiny: Callable[..., Model]) -> None:
    loaded, *_ = events_of(plan_for(tiny(), draft=with_model(tiny("hybrid"))), ask("hi", max_tokens=2))
    assert loaded.notes == ("without the draft: a recurrent model cannot take back what the target refuses",)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_draft_that_fails_in_mid_answer_is_dropped_and_said_once(tiny: Callable[..., Model], adaptive: bool) -> None:
    """The draft's smaller vocabulary ends first: the answer goes on without it."""
    expected, _ = answers(plan_for(tiny()), [ask("hi", max_tokens=40)])[0]
    draft = with_model(tiny("llama", vocab_size=300))  # its ids end where the target's go on
    plan = plan_for(tiny(), draft=adapting(draft) if adaptive else draft)
    *events, done = events_of(plan, ask("hi", max_tokens=40))
    assert "".join(event.text for event in events if isinstance(event, Text)) == expected
    assert len(done.notes) == 1
    assert "without the draft from then on" in done.notes[0]


def test_the_drafts_tokens_are_told_apart_when_asked(scripted: Callable[..., Model]) -> None:
    model = scripted([b"a", b"b", b"c", b"d", b"e", b"f"])
    shown = [
        (event.text, event.drafted)
        for event in events_of(plan_for(model, draft=with_model(model, 2)), ask("\n", show_draft=True))
        if isinstance(event, Text)
    ]
    assert shown == [("a", False), ("bc", True), ("d", False), ("ef", True)]

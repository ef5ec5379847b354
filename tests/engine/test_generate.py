"""Answers from the real llama.cpp: text as the model's tokens say, ends where it should, the same for the same seed."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tiny_vocabulary
from tests.engine.conftest import answer, ask, load, plan_for
from tokencli.app.measuring import timed
from tokencli.core import Begun, Done, Event, Message, Model, Prefilling, Request, Sampling, Text
from tokencli.engine.client import Engine
from tokencli.errors import BadModelFile, DoesNotFit, Interrupted
from tokencli.world import gguf_file

Scripted = Callable[..., Model]


def say(model: Model, **options: object) -> tuple[str, str, str]:
    """Answer, reasoning and finish reason of a scripted model."""
    with Engine() as engine:
        load(engine, plan_for(model))
        text, reasoning, done = answer(engine.generate(ask("\n", **options)))
    return text, reasoning, done.finish_reason


@pytest.mark.parametrize(
    "text", ["天为什么是蓝的？因为瑞利散射。", "🙂👩‍👩‍👧 ok 🇩🇪", "naïve café – “quoted”"], ids=["chinese", "emoji", "accents"]
)
def test_any_text_streams_right_when_every_code_point_is_split(scripted: Scripted, text: str) -> None:
    assert say(scripted([bytes([byte]) for byte in text.encode()])) == (text, "", "stop")


def test_bytes_that_are_no_text_do_not_stop_the_answer(scripted: Scripted) -> None:
    assert say(scripted([b"a", b"\xff", b"b", b"\xe5\xa4"])) == ("a\ufffdb\ufffd", "", "stop")


def test_a_stop_string_split_over_tokens_is_never_shown(scripted: Scripted) -> None:
    assert say(scripted([b"one", b" be", b"ta ga", b"mma two"]), stop=("beta gamma",)) == ("one ", "", "stop")


def test_what_was_held_back_for_a_stop_string_comes_at_the_end(scripted: Scripted) -> None:
    assert say(scripted([b"one", b" beta"]), stop=("beta gamma",)) == ("one beta", "", "stop")


def test_reasoning_is_kept_apart(scripted: Scripted) -> None:
    pieces = [b"<think>", b"\n", b"Hm, ", b"42.", b"\n", b"</think>", b"\n\n", b"It is 42."]
    assert say(scripted(pieces)) == ("It is 42.", "Hm, 42.", "stop")


def test_max_tokens_ends_an_answer(scripted: Scripted) -> None:
    assert say(scripted([b"a", b"b", b"c", b"d"]), max_tokens=2) == ("ab", "", "length")


def test_the_end_of_the_context_ends_an_answer(scripted: Scripted) -> None:
    with Engine() as engine:
        loaded = load(engine, plan_for(scripted([b"x"], end=False), context=256))
        _, _, done = answer(engine.generate(ask("hi")))
    assert done.finish_reason == "length"
    assert done.stats.prompt_tokens + done.stats.tokens == loaded.context + 1  # the last token needs no place


def test_a_prompt_longer_than_the_context_is_refused_before_it_is_read(scripted: Scripted) -> None:
    with Engine() as engine:
        load(engine, plan_for(scripted([b"x"]), context=256))
        with pytest.raises(DoesNotFit, match=r"the prompt has \d+ tokens, the context holds 256"):
            list(engine.generate(ask("word " * 300)))
        assert answer(engine.generate(ask("short")))[0] == "x", "the engine goes on after an error"


def test_same_seed_same_text_and_another_seed_another(smollm2: Model) -> None:
    with Engine() as engine:
        load(engine, plan_for(smollm2))
        texts = [
            answer(engine.generate(ask("Tell a story.", temperature=0.8, seed=seed, max_tokens=40)))[0] for seed in (5, 5, 6)
        ]
    assert texts[0] == texts[1] != texts[2]


def test_a_real_model_answers_a_real_question(smollm2: Model) -> None:
    with Engine() as engine:
        loaded = load(engine, plan_for(smollm2))
        text, _, done = answer(engine.generate(ask("Why is the sky blue?", max_tokens=40)))
    assert "scattering" in text
    assert (loaded.gpu_layers, loaded.layers) == (0, 31)
    stats = done.stats
    assert stats.prompt_tokens > 30
    measured = (stats.ttft_seconds, stats.decode_tokens_per_second, stats.prefill_tokens_per_second, stats.itl_ms)
    assert all(measured)


def test_the_buffers_are_told_in_bytes(smollm2: Model) -> None:
    with Engine() as engine:
        (place,) = load(engine, plan_for(smollm2, context=2048)).devices
    cells, layers, kv_width, bytes_f16 = 2048, 30, 3 * 64, 2  # SmolLM2-135M: 3 KV heads of 64
    assert place.kv == cells * layers * 2 * kv_width * bytes_f16
    assert abs(place.weights - smollm2.bytes) < 4 << 20
    assert place.compute > 0


def test_exactly_one_bos(tiny: Callable[..., Model]) -> None:
    """Reports A5-03, A5-04, A5-05: a template that writes BOS, one that does not, a vocabulary that wants none."""
    bare = "{% for m in messages %}{{ m.content }}{% endfor %}"
    counts = {}
    for name, options in {
        "both": {"chat_template": "{{ bos_token }}" + bare},
        "vocabulary only": {"chat_template": bare},
        "neither": {"chat_template": bare, "add_bos": False},
    }.items():
        with Engine() as engine:
            load(engine, plan_for(tiny(**options)))
            done = answer(engine.generate(ask("abc", max_tokens=1)))[2]
        counts[name] = done.stats.prompt_tokens
    assert counts == {"both": 4, "vocabulary only": 4, "neither": 3}


def untemplated(tiny: Callable[..., Model]) -> Model:
    """A model whose control tokens tell no template either."""
    unmarked = [text.replace(b"<|im_", b"<|turn_") for text in tiny_vocabulary.of_size(512).texts]
    return tiny(chat_template=None, extra={"tokenizer.ggml.tokens": unmarked})


def test_a_model_without_template_continues_plain_text(tiny: Callable[..., Model]) -> None:
    with Engine() as engine:
        loaded = load(engine, plan_for(untemplated(tiny)))
        done = answer(engine.generate(ask("abc", max_tokens=1)))[2]
    assert loaded.template is None
    assert done.stats.prompt_tokens == 4


def test_plain_text_that_broke_off_keeps_to_its_limit_of_tokens(tiny: Callable[..., Model]) -> None:
    """Each character of what was begun is a token of the tiny vocabulary."""
    with Engine() as engine:
        load(engine, plan_for(untemplated(tiny)))
        done = answer(engine.generate(ask("Once upon a time", max_tokens=8, begun=Begun(answer="there"), past_end=True)))[2]
    assert (done.stats.tokens, done.finish_reason) == (3, "length")


def test_a_model_without_template_is_recognised_by_its_control_tokens(tiny: Callable[..., Model]) -> None:
    """Report A5-12: never another model's tags without a word."""
    with Engine() as engine:
        loaded = load(engine, plan_for(tiny(chat_template=None)))
        assert loaded.template == "chatml"
        assert engine.count(ask("abc")) == len("__user\nabc_\n_assistant\n"), "control tokens are one each, and a BOS"


def test_another_template_can_be_asked_for(tiny: Callable[..., Model]) -> None:
    with Engine() as engine:
        load(engine, plan_for(tiny()))
        assert engine.count(ask("abc", template="{{ messages[0].content }}!")) == len("_abc!")


def test_a_template_that_fails_is_one_clear_error(tiny: Callable[..., Model]) -> None:
    with Engine() as engine:
        load(engine, plan_for(tiny(chat_template="{{ messages[0]['content'].nothing() }}")))
        with pytest.raises(BadModelFile, match="the model's chat template fails"):
            list(engine.generate(ask("abc")))


def test_an_unknown_architecture_needs_another_engine(tmp_path: Path, tiny: Callable[..., Model]) -> None:
    raw = Path(tiny().file).read_bytes()
    other = tmp_path / "other.gguf"
    other.write_bytes(raw.replace(b"llama", b"lambs"))
    with Engine() as engine, pytest.raises(BadModelFile, match="does not know the architecture 'lambs'"):
        load(engine, plan_for(gguf_file.read_model(other, "other")))


def test_closing_early_cancels_and_the_engine_serves_on(scripted: Scripted) -> None:
    with Engine() as engine:
        load(engine, plan_for(scripted([b"x"], end=False)))
        events = engine.generate(ask("hi"))
        next(event for event in events if isinstance(event, Text))
        events.close()
        assert answer(engine.generate(ask("hi", max_tokens=3)))[0] == "xxx"


class _InterruptedAtTheEnd(Engine):
    def generate(self, request: Request, timeout: float | None = None) -> Iterator[Event]:
        for event in super().generate(request, timeout):
            if isinstance(event, Done):
                signal.raise_signal(signal.SIGINT)
            yield event


def test_an_interrupt_too_late_to_cut_an_answer_still_ends_a_measurement(scripted: Scripted) -> None:
    with _InterruptedAtTheEnd() as engine:
        load(engine, plan_for(scripted([b"x"], end=False)))
        with pytest.raises(Interrupted):
            timed(engine, ask("hi", max_tokens=3))


def test_a_time_limit_keeps_what_was_written(scripted: Scripted) -> None:
    with Engine() as engine:
        load(engine, plan_for(scripted([b"x"], end=False), context=65536))
        text, _, done = answer(engine.generate(ask("hi"), timeout=0.3))
    assert done.finish_reason == "timeout"
    assert text == "x" * done.stats.tokens


def test_a_long_prompt_tells_its_progress(smollm2: Model) -> None:
    with Engine() as engine:
        load(engine, plan_for(smollm2, context=4096))
        told = [event for event in engine.generate(ask("one two " * 500, max_tokens=1)) if isinstance(event, Prefilling)]
    assert [event.done for event in told] == [0, 512, 1024][: len(told)]
    assert len(told) >= 2


def test_the_template_sees_every_message_in_order(tiny: Callable[..., Model]) -> None:
    """Each character is a token of the tiny vocabulary, so the count tells what was rendered."""
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    messages = (Message("system", "S"), Message("user", "one"), Message("assistant", "two"), Message("user", "three"))
    with Engine() as engine:
        load(engine, plan_for(tiny(chat_template=template, add_bos=False)))
        done = answer(engine.generate(Request(messages, Sampling(temperature=0), 1)))[2]
    assert done.stats.prompt_tokens == len("s:S;u:one;a:two;u:three;>")

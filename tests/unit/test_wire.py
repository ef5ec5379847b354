"""Every message comes out of the pipe as it went in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencli import core
from tokencli.engine import wire

STATS = core.Stats(
    prompt_tokens=100,
    cached_tokens=20,
    tokens=7,
    load_seconds=1.5,
    ttft_seconds=0.25,
    prefill_tokens_per_second=320.0,
    decode_tokens_per_second=12.5,
    itl_ms=core.Percentiles(80.0, 90.5, 99.0),
    tokens_per_emission=1.4,
    drafted=8,
    accepted=3,
    overhead_ms_per_token=0.125,
    bandwidth_share=0.5,
)
NO_STATS = core.Stats(0, 0, 0, 0.0, None, None, None, None, None, 0, 0, None)
PLACES = (core.DeviceBytes("CPU", "cpu", 1, 2, 3, 4, 5, budget=1 << 40), core.DeviceBytes("Vulkan0", "integrated"))
MODEL = core.Model("mine", "/models/你好.gguf", "Q4_K_M", "llama", 1 << 34, layers=32, context_trained=None)
PLAIN = core.Plan(MODEL, backend="cpu", gpu_layers=0, context=4096, threads=8)
FULL = core.Plan(
    MODEL,
    backend="vulkan",
    gpu_layers=33,
    context=8192,
    threads=4,
    device="Vulkan0",
    profile="amd-780m-vulkan",
    cpu_moe_layers=3,
    kv_type="q8_0",
    batch=256,
    ubatch=128,
    flash_attention="on",
    extra_buffers=False,
    draft=core.Draft("model", "/models/draft.gguf", "CPU", max_tokens=8, min_probability=0.75),
    devices=PLACES,
    predicted=core.Prediction(0.5, 100.0, 20.0, "calibrated"),
    notes=("one", "two\nlines"),
)


def through_the_pipe(**fields: object) -> dict:
    return json.loads(wire.line(3, **fields))


@pytest.mark.parametrize(
    "event",
    [
        core.Loading(0.25),
        core.Scored(1, 8, (0.5, 12.25), (0.25, 3.0), (0.0, 1e-9), 1),
        core.Scored(2, 8, (0.5,)),
        core.Loaded(20, 31, 2048, PLACES, 1.5, notes=("a note",)),
        core.Loaded(0, 31, 2048, (), 0.0),
        core.Prefilling(512, 1000),
        core.Text("answer", "你好 🙂\n\u2028\x1b[31m\0"),
        core.Text("reasoning", "", drafted=True),
        core.Done("stop", STATS, ("a note",)),
        core.Done("timeout", NO_STATS),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_comes_out_as_it_went_in(event: core.Event) -> None:
    message = through_the_pipe(**wire.event_fields(event))
    assert (message["id"], message["is"]) == (3, type(event).__name__)
    assert wire.event(message) == event


@given(st.text(st.characters()), st.sampled_from(["answer", "reasoning"]), st.booleans())
def test_any_text_is_one_line(text: str, kind: core.TextKind, drafted: bool) -> None:
    """Also a lone surrogate, which no UTF-8 can hold."""
    event = core.Text(kind, text, drafted)
    raw = wire.line(1, **wire.event_fields(event))
    assert raw.count(b"\n") == 1
    assert raw.endswith(b"\n")
    assert raw.isascii()
    assert wire.event(json.loads(raw)) == event
    assert wire.text_line(1, kind, text, drafted) == raw


@pytest.mark.parametrize("plan", [PLAIN, FULL], ids=["plain", "full"])
def test_a_plan_comes_out_as_it_went_in(plan: core.Plan) -> None:
    assert wire.plan(through_the_pipe(do="load", plan=plan)["plan"]) == plan


@pytest.mark.parametrize(
    "request_",
    [
        core.Request((core.Message("user", "Hello"),), core.Sampling()),
        core.Request(
            (core.Message("system", "Be brief."), core.Message("user", "你好"), core.Message("assistant", "🙂")),
            core.Sampling(0.0, 0, 1.0, 0.0, seed=(1 << 64) - 1),
            max_tokens=5,
            stop=("\n\n", "END"),
            show_draft=True,
        ),
    ],
    ids=["plain", "full"],
)
def test_a_request_comes_out_as_it_went_in(request_: core.Request) -> None:
    assert wire.request(through_the_pipe(do="generate", request=request_)["request"]) == request_


def test_devices_come_out_as_they_went_in() -> None:
    device = core.Device("Vulkan0", "gpu", "AMD Radeon 780M", 1 << 35, 1 << 34)
    (found,) = through_the_pipe(**{"is": "Devices"}, devices=[device])["devices"]
    assert core.Device(**found) == device


def test_an_unknown_event_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="Nonsense"):
        wire.event({"id": 1, "is": "Nonsense"})

"""What the app makes of what the engine did: honest notes where it is not what was asked."""

import dataclasses
from typing import Any

import pytest

from tests.unit.test_planner import TARGET
from tokencli.app import as_loaded
from tokencli.core import DeviceBytes, Draft, Loaded, Plan

PLAN = Plan(model=TARGET.model, backend="cuda", device="CUDA0", gpu_layers=8, context=1000, threads=2, notes=("first",))
ON_CARD = (DeviceBytes("CPU", "cpu", weights=5), DeviceBytes("CUDA0", "gpu", weights=7, kv=1))


def loaded(layers: int, devices: tuple[DeviceBytes, ...] = ON_CARD, **fields: object) -> Loaded:
    return Loaded(gpu_layers=layers, layers=11, context=1024, devices=devices, load_seconds=1.0, **fields)


def test_what_went_as_planned_needs_no_word() -> None:
    plan = as_loaded(PLAN, loaded(8))
    assert plan.notes == ("first",)
    assert (plan.gpu_layers, plan.context, plan.devices) == (8, 1024, ON_CARD)


def test_layers_that_did_not_land_on_the_device_are_said() -> None:
    """Report A1-19: a silent CPU fallback that still says "model loaded"."""
    nowhere = as_loaded(PLAN, loaded(0, (DeviceBytes("CPU", "cpu", weights=12),)))
    assert nowhere.notes[-1] == "nothing was put on CUDA0: the model runs on the CPU"
    fewer = as_loaded(PLAN, loaded(5))
    assert fewer.notes[-1] == "only 5 of the 8 layers asked for are on CUDA0"


@pytest.mark.parametrize(
    ("asked", "used", "shown", "said"),
    [
        ("auto", "on", "on", 0),
        ("auto", "off", "off", 1),
        ("on", "off", "off", 1),
        ("off", None, "off", 0),
        ("auto", None, "auto", 0),
    ],
)
def test_flash_attention_is_told_as_it_is_used(asked: Any, used: Any, shown: str, said: int) -> None:
    plan = as_loaded(dataclasses.replace(PLAN, flash_attention=asked), loaded(8, flash_attention=used))
    assert plan.flash_attention == shown
    assert sum(note.startswith("flash attention is off: CUDA0 has none") for note in plan.notes) == said


@pytest.mark.parametrize("has_draft", [True, False])
def test_a_draft_that_was_not_loaded_is_not_in_the_plan(has_draft: bool) -> None:
    asked = dataclasses.replace(PLAN, draft=Draft("model", "draft.gguf", None, 4, 0.0))
    notes = () if has_draft else ("without the draft: it broke",)
    plan = as_loaded(asked, loaded(8, draft=has_draft, notes=notes))
    assert (plan.draft is not None) == has_draft
    assert plan.notes == ("first", *notes)


@pytest.mark.parametrize(
    ("template", "note"),
    [
        ("own", None),
        ("chatml", "this model has no chat template: taken for chatml by its control tokens"),
        (None, "this model has no chat template: the prompt is continued as plain text"),
    ],
)
def test_a_model_without_chat_template_is_said_unless_one_was_asked_for(template: str | None, note: str | None) -> None:
    """Report A5-12: never another model's tags without a word."""
    assert as_loaded(PLAN, loaded(8, template=template)).notes[1:] == ((note,) if note else ())
    assert as_loaded(PLAN, loaded(8, template=template), has_template=True).notes == ("first",)

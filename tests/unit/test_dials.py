"""Which settings are tried for which plan, and what a choice of them means to the planner and the worker."""

import dataclasses
import math

import pytest

from tests.unit.test_app import PLAN
from tests.unit.test_planner import CARD, IGPU, machine
from tokencli.core import Draft, Plan
from tokencli.tune.dials import Allowed, Meaning, dials, meaning
from tokencli.tune.search import Choice, Value

ON_CPU = dataclasses.replace(PLAN, backend="cpu", device=None, gpu_layers=0, threads=8, context=4096)
ON_IGPU = dataclasses.replace(ON_CPU, backend="vulkan", device="Vulkan0", gpu_layers=11)
ANY = Allowed(frozenset())


def values(plan: Plan, allowed: Allowed = ANY) -> dict[str, tuple[Value, ...]]:
    return {dial.name: dial.values for dial in dials(plan, machine(IGPU), allowed)[0]}


def changed(plan: Plan, allowed: Allowed = ANY, **changes: Value) -> Meaning:
    _, start = dials(plan, machine(IGPU), allowed)
    choice = start
    for name, value in changes.items():
        choice = choice.put(name, value)
    return meaning(choice, start, plan.device or "CPU")


def test_the_planned_value_comes_first_and_is_the_start() -> None:
    found, start = dials(ON_CPU, machine(IGPU), Allowed(frozenset(), devices=("Vulkan0", "CPU")))
    assert [dial.name for dial in found][:3] == ["device", "threads", "draft"]
    assert all(start.get(dial.name) == dial.values[0] for dial in found)
    assert [dial.apart for dial in found] == [True] + [False] * (len(found) - 1)


def test_threads_are_halved_from_the_cores_and_never_more() -> None:
    assert values(ON_CPU)["threads"] == (8, 4, 2, 1)
    assert values(dataclasses.replace(ON_CPU, threads=3))["threads"] == (3, 8, 4, 2, 1)


def test_a_draft_model_is_tried_where_there_is_one() -> None:
    assert values(ON_CPU)["draft"] == ("off", "ngram:4", "ngram:8")
    both = Allowed(frozenset(), drafts=("ngram", "model"))
    drafted = dataclasses.replace(ON_CPU, draft=Draft("model", "d.gguf", None, 4, 0.0))
    assert values(drafted, both)["draft"] == ("model:4", "off", "ngram:4", "ngram:8", "model:2", "model:8")


def test_what_a_flag_has_decided_is_no_dial() -> None:
    found = values(ON_CPU, Allowed(frozenset({"threads", "draft"})))
    assert not {"threads", "draft"} & set(found)
    assert "batch_threads" in found


def test_what_changes_answers_is_tried_only_when_allowed() -> None:
    assert "kv_type" not in values(ON_CPU)
    assert values(ON_CPU, Allowed(frozenset(), loss=True))["kv_type"] == ("f16", "q8_0")
    quantised = dataclasses.replace(ON_CPU, kv_type="q8_0", flash_attention="on")
    assert "flash_attention" not in values(quantised), "a quantised cache needs it"


def test_the_switches_of_a_backend_are_for_its_plans() -> None:
    assert {"GGML_VK_DISABLE_COOPMAT", "GGML_VK_PREFER_HOST_MEMORY"} <= set(values(ON_IGPU))
    assert not any(name.startswith("GGML_VK") for name in values(ON_CPU))
    assert values(ON_CPU)["OMP_WAIT_POLICY"] == ("default", "passive")


def test_a_split_is_tried_with_less_on_the_device() -> None:
    assert "gpu_layers" not in values(ON_IGPU)
    split = values(dataclasses.replace(ON_IGPU, gpu_layers=8, cpu_moe_layers=3))
    assert split["gpu_layers"] == (8, 6, 4)
    assert split["cpu_moe"] == (3, 4)
    assert "gpu_layers" not in values(ON_CPU)


def test_buffers_that_crash_are_not_tried() -> None:
    assert values(ON_CPU)["extra_buffers"] == (True, False)
    assert "extra_buffers" not in values(dataclasses.replace(ON_CPU, extra_buffers=False))


def test_weights_are_read_whole_where_the_memory_holds_them_twice() -> None:
    assert values(ON_CPU)["load_mode"] == ("auto", "none")
    assert values(dataclasses.replace(ON_CPU, load_mode="none"))["load_mode"] == ("none", "mmap")
    large = dataclasses.replace(ON_CPU, model=dataclasses.replace(ON_CPU.model, bytes=9 << 30))
    assert "load_mode" not in values(large)
    assert changed(ON_CPU, load_mode="none").settings == {"load_mode": "none"}


def test_a_micro_batch_is_no_larger_than_the_batch_or_the_context() -> None:
    assert values(ON_CPU)["ubatch"] == (512, 128, 256)
    assert values(dataclasses.replace(ON_CPU, context=200, ubatch=200))["ubatch"] == (200, 128)


@pytest.mark.parametrize(
    ("changes", "settings", "environment"),
    [
        ({}, {}, {}),
        ({"threads": 2, "extra_buffers": False}, {"threads": 2, "extra_buffers": False}, {}),
        ({"draft": "ngram:8"}, {"draft": "ngram", "draft_tokens": 8}, {}),
        ({"batch_threads": 4}, {"batch_threads": 4}, {}),
        ({"OMP_WAIT_POLICY": "passive"}, {}, {"OMP_WAIT_POLICY": "passive"}),
        ({"threads": 8, "OMP_WAIT_POLICY": "default"}, {}, {}),
    ],
)
def test_only_what_differs_is_meant(changes: dict[str, Value], settings: dict[str, Value], environment: dict[str, str]) -> None:
    assert changed(ON_CPU, **changes) == Meaning("CPU", settings, environment)


def test_a_draft_can_be_switched_off_and_a_device_changed() -> None:
    drafted = dataclasses.replace(ON_CPU, draft=Draft("ngram", None, None, 4, 0.0))
    assert changed(drafted, draft="off").settings == {"draft": "off"}
    allowed = Allowed(frozenset(), devices=("Vulkan0", "CPU"))
    assert changed(ON_IGPU, allowed, device="CPU").device == "CPU"
    assert changed(ON_IGPU, allowed, threads=2).device == "Vulkan0"
    assert changed(ON_IGPU, threads=2).device == "Vulkan0", "no dial: the plan's"


def test_a_choice_is_the_same_in_whatever_order_it_was_made() -> None:
    one = Choice().put("a", 1).put("b", 2)
    other = Choice().put("b", 2).put("a", 3).put("a", 1)
    assert one == other
    assert one.beside(Choice().put("a", 1)) == {"b": 2}


def test_a_machine_with_one_core_has_no_threads_to_try() -> None:
    lonely = dataclasses.replace(machine(CARD), cores=1)
    found, _ = dials(dataclasses.replace(ON_CPU, threads=1), lonely, ANY)
    assert not {"threads"} & {dial.name for dial in found}
    assert math.prod(len(dial.values) for dial in found) > 1

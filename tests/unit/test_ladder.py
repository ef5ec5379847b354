"""What is tried after a plan that failed: the steps down, in order, and where they end."""

import dataclasses

import pytest

from tests.unit.test_planner import TARGET
from tokencli.app.ladder import Ladder, is_of_memory
from tokencli.core import Draft, Plan
from tokencli.errors import DecodeFailed, EngineCrashed, EngineTimeout, NoRoomToCompute, OutOfMemory, TokencliError
from tokencli.plan.choose import ALL, Wishes

ON_CARD = Plan(model=TARGET.model, backend="cuda", device="CUDA0", gpu_layers=11, context=4096, threads=2)
ON_CPU = dataclasses.replace(ON_CARD, backend="cpu", device=None, gpu_layers=0)
REFUSED = OutOfMemory("the memory does not hold it")
CRASH = EngineCrashed("the engine was killed by SIGSEGV while generating")


def follow(plan: Plan, failure: TokencliError, experts: int = 0, tokens: int = 0) -> list[str]:
    """The words of each step where every plan fails in the same way; a plan is what its wishes say."""
    ladder, wishes, steps = Ladder(experts), Wishes(), []
    while step := ladder.after(failure, plan, wishes, tokens):
        steps.append(step.words.strip())
        wishes = step.wishes
        plan = carried_out(plan, wishes, experts)
        assert len(steps) < 20
    return steps


def carried_out(plan: Plan, wishes: Wishes, experts: int) -> Plan:
    layers = plan.gpu_layers if wishes.gpu_layers is None else wishes.gpu_layers
    return dataclasses.replace(
        plan,
        gpu_layers=layers,
        device=plan.device if layers else None,
        draft=None if wishes.draft == "off" else plan.draft,
        ubatch=wishes.ubatch or plan.ubatch,
        cpu_moe_layers=experts if wishes.cpu_moe == ALL else 0,
        context=wishes.context or plan.context,
    )


def test_memory_goes_down_to_the_cpu_and_then_to_a_small_context() -> None:
    assert follow(ON_CARD, REFUSED) == [
        "with 5 layers on CUDA0",
        "with 2 layers on CUDA0",
        "with 1 layer on CUDA0",
        "on the CPU",
        "with a context of 2048",
        "with a context of 1024",
        "with a context of 512",
    ]


def test_what_costs_least_goes_first() -> None:
    draft = Draft("model", "draft.gguf", "CUDA0", 4, 0.0)
    steps = follow(dataclasses.replace(ON_CARD, draft=draft), NoRoomToCompute("no room"), experts=10)
    assert steps[:4] == [
        "without the draft model",
        "with a micro-batch of 128 tokens",
        "with all experts on the CPU",
        "with 5 layers on CUDA0",
    ]


def test_the_context_keeps_what_the_answer_needs() -> None:
    assert follow(ON_CPU, REFUSED, tokens=1600) == ["with a context of 2048"]
    assert follow(ON_CPU, REFUSED, tokens=1700) == []


@pytest.mark.parametrize("failure", [CRASH, EngineTimeout("no sign of life"), DecodeFailed("status -3")])
def test_a_crash_is_tried_again_then_with_what_crashes_least_then_no_more(failure: TokencliError) -> None:
    assert follow(ON_CARD, failure) == ["", "on the CPU"]
    assert follow(ON_CPU, failure) == ["", "with a context of 2048"]


def test_a_failure_before_any_plan_leads_to_the_cpu_once() -> None:
    assert Ladder().after(REFUSED, None, Wishes(gpu_layers=0)) is None
    assert Ladder().after(REFUSED, None, Wishes(device="CPU")) is None
    step = Ladder().after(REFUSED, None, Wishes(device="Vulkan0", cpu_moe=3))
    assert step
    assert step.wishes == Wishes(gpu_layers=0)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (REFUSED, True),
        (NoRoomToCompute("x"), True),
        (EngineCrashed("died: terminate called after throwing an instance of 'std::bad_alloc'"), True),
        (EngineCrashed("died", "", ("vk::Device::allocateMemory: ErrorOutOfDeviceMemory", "aborted")), True),
        (EngineCrashed("died", "", ("CUDA error: out of memory",)), True),
        (CRASH, False),
        (EngineCrashed("the engine was killed by SIGKILL while generating"), False),
        (EngineTimeout("out of memory"), False),
    ],
)
def test_what_counts_as_refused_memory(failure: TokencliError, expected: bool) -> None:
    assert is_of_memory(failure) is expected

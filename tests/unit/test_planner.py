"""Where a model goes: decided from values, with reasons."""

import pytest

from tokencli.core import Device, Model, Plan
from tokencli.errors import UsageError
from tokencli.plan.planner import DEFAULT_CONTEXT, Wishes, is_software, make_plan

GIB = 1 << 30
CPU = Device("CPU", "cpu", "AMD Ryzen 7 8845HS", 32 * GIB, 32 * GIB)
IGPU = Device("Vulkan0", "integrated", "AMD Radeon 780M (RADV PHOENIX)", 20 * GIB, 19 * GIB)
DGPU = Device("Vulkan1", "gpu", "NVIDIA GeForce RTX 2060", 6 * GIB, 5 * GIB)
CUDA = Device("CUDA0", "gpu", "NVIDIA GeForce RTX 2060", 6 * GIB, 5 * GIB)
LLVMPIPE = Device("Vulkan0", "gpu", "llvmpipe (LLVM 15.0.6, 256 bits)", 64 * GIB, 64 * GIB)
NPU = Device("HTP0", "accelerator", "Hexagon", 16 * GIB, 16 * GIB)
DECIDE_FOR_ME = Wishes()


def model(size: int = 2 * GIB, trained: int | None = 32_768) -> Model:
    return Model("m", "m.gguf", "Q4_K_M", "llama", size, layers=32, context_trained=trained)


def plan(*devices: Device, wishes: Wishes = DECIDE_FOR_ME, size: int = 2 * GIB, extra_buffers: bool = True) -> Plan:
    return make_plan(model(size), [CPU, *devices], wishes, cores=8, extra_buffers=extra_buffers)


def placed(made: Plan) -> tuple[str, str | None, int]:
    return made.backend, made.device, made.gpu_layers


@pytest.mark.parametrize(
    ("devices", "where"),
    [
        ([], ("cpu", None, 0)),
        ([NPU], ("cpu", None, 0)),
        ([IGPU], ("vulkan", "Vulkan0", 33)),
        ([CUDA], ("cuda", "CUDA0", 33)),
        ([IGPU, DGPU], ("vulkan", "Vulkan1", 33)),
        ([LLVMPIPE], ("cpu", None, 0)),
        ([LLVMPIPE, DGPU], ("vulkan", "Vulkan1", 33)),
    ],
    ids=["none", "accelerator", "integrated", "discrete", "both", "software", "software and discrete"],
)
def test_a_small_model_goes_whole_to_the_best_real_device(devices: list[Device], where: tuple[str, str | None, int]) -> None:
    assert placed(plan(*devices)) == where
    assert plan(*devices).notes == ()


def test_of_like_devices_the_one_with_the_most_free_memory_is_taken() -> None:
    larger = Device("CUDA1", "gpu", "NVIDIA GeForce RTX 3090", 24 * GIB, 20 * GIB)
    assert plan(CUDA, larger).device == plan(larger, CUDA).device == "CUDA1"


@pytest.mark.parametrize("name", ["llvmpipe (LLVM 15.0.6, 256 bits)", "SwiftShader Device (Subzero)", "softpipe"])
def test_a_cpu_in_disguise_is_known_by_its_description(name: str) -> None:
    assert is_software(Device("Vulkan0", "gpu", name, GIB, GIB))
    assert not is_software(IGPU)


def test_a_model_that_may_not_fit_stays_on_the_cpu_and_the_plan_says_why() -> None:
    made = plan(CUDA, size=5 * GIB)
    assert placed(made) == ("cpu", None, 0)
    (note,) = made.notes
    assert "5.0 GiB free on CUDA0" in note
    assert "--gpu-layers" in note


def test_a_tenth_and_a_gibibyte_are_left_free() -> None:
    assert plan(CUDA, size=3 * GIB).gpu_layers == 33
    assert plan(CUDA, size=int(3.7 * GIB)).gpu_layers == 0


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (1, 1), (20, 20), (33, 33), (99, 33), (-1, 33)])
def test_layers_asked_for_are_given_up_to_all_there_are(asked: int, given: int) -> None:
    made = plan(CUDA, wishes=Wishes(gpu_layers=asked), size=50 * GIB)
    assert made.gpu_layers == given
    assert made.device == ("CUDA0" if given else None)
    assert made.notes == ()


def test_no_gpu_layers_is_a_wish_that_every_computer_can_meet() -> None:
    assert placed(plan(CUDA, wishes=Wishes(gpu_layers=0))) == placed(plan(wishes=Wishes(gpu_layers=0))) == ("cpu", None, 0)


@pytest.mark.parametrize("devices", [[], [NPU]])
def test_gpu_layers_without_a_gpu_are_an_error(devices: list[Device]) -> None:
    with pytest.raises(UsageError, match="needs a GPU") as caught:
        plan(*devices, wishes=Wishes(gpu_layers=-1))
    assert "--gpu-layers 0" in caught.value.hint


def test_a_software_device_is_used_when_asked_for_and_said_to_be_one() -> None:
    made = plan(LLVMPIPE, wishes=Wishes(gpu_layers=20))
    assert placed(made) == ("vulkan", "Vulkan0", 20)
    assert any("software device" in note and "llvmpipe" in note for note in made.notes)
    assert plan(LLVMPIPE, DGPU, wishes=Wishes(gpu_layers=20)).device == "Vulkan1"


@pytest.mark.parametrize(
    ("wished", "trained", "context", "noted"),
    [
        (None, 32_768, DEFAULT_CONTEXT, False),
        (None, 2048, 2048, False),
        (None, None, DEFAULT_CONTEXT, False),
        (8192, 32_768, 8192, False),
        (2048, 2048, 2048, False),
        (8192, 2048, 8192, True),
        (8192, None, 8192, False),
    ],
)
def test_the_context_is_the_users_wish_else_what_the_model_knows(
    wished: int | None, trained: int | None, context: int, noted: bool
) -> None:
    made = make_plan(model(trained=trained), [CPU], Wishes(context=wished), cores=8, extra_buffers=True)
    assert made.context == context
    assert bool(made.notes) == noted
    assert not noted or "2048 the model was trained for" in made.notes[0]


def test_threads_are_the_users_wish_else_one_a_core() -> None:
    assert plan().threads == 8
    assert plan(wishes=Wishes(threads=3)).threads == 3


def test_a_plan_without_extra_buffers_says_what_that_costs() -> None:
    assert plan().extra_buffers
    made = plan(extra_buffers=False)
    assert not made.extra_buffers
    assert "slower prefill" in made.notes[0]


def test_a_plan_carries_its_model() -> None:
    assert plan().model == model()

"""The joint search: the same plan as trying everything, quickly, and what it is chosen by."""

import dataclasses
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import zoo_cases
from tests.unit import listings
from tests.unit.test_planner import PROFILES, info
from tokencli.core import Device, DeviceBytes, Machine, ModelInfo, Plan
from tokencli.errors import DoesNotFit, UsageError
from tokencli.listing import variants
from tokencli.plan.choose import Wishes
from tokencli.plan.loss import FLOOR, loss, published_loss, without_kernel
from tokencli.plan.memory import placed
from tokencli.plan.offers import offered_besides, scaled
from tokencli.plan.planner import Planner
from tokencli.plan.search import READING, Search, Setting, grade
from tokencli.plan.sizes import Budgets, ModelFile
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import read_snapshot
from tokencli.world.settings import read_profiles, read_speeds

MIB, GIB = 1 << 20, 1 << 30
SPEEDS = read_speeds(data_folder())
SHIPPED = ("amd-780m-32gb", "cuda-6gb-16gb", "cpu-16gb")


def no_compute(_plan: Plan) -> tuple[DeviceBytes, ...]:
    return ()


def offering(name: str, listing: list[object]) -> ModelFile:
    """A model of the zoo as a repository offers it, the header of its Q4_K_M at hand."""
    own = ModelFile.of(zoo_cases.info(name), f"{name}.gguf", name)
    return dataclasses.replace(own, offered=tuple(variants(listing)))  # type: ignore[arg-type]


MIXTURE = offering("qwen3-30b-a3b", listings.UNSLOTH)
EIGHT_B = offering("qwen3-8b", listings.QWEN)


def planner(target: ModelFile, machine: Machine, dry_run: object = no_compute) -> Planner:
    return Planner(target, machine, read_profiles(data_folder()), dry_run, speeds=SPEEDS)  # type: ignore[arg-type]


# The same as trying everything


def a_case(number: int) -> tuple[Search, list[Setting]]:
    """A small model in up to four quants on a random machine, with buffers of random sizes."""
    draw = random.Random(number)
    blocks = draw.randint(1, 6)
    model = info(blocks, draw.randint(20, 400) * MIB)
    if draw.random() < 0.4:
        size = model.block_bytes[0] * draw.randint(5, 9) // 10
        model = dataclasses.replace(model, expert_bytes=(size,) * blocks, experts=8, experts_used=draw.randint(1, 8))
    model = dataclasses.replace(model, quant=draw.choice(["Q8_0", "Q4_K_M", "Q3_K_M"]), parameters=model.weight_bytes)
    models = [ModelFile.of(model, "m.gguf", "m")]
    for quant in draw.sample(["Q6_K", "Q5_K_M", "Q4_0", "Q2_K"], draw.randint(0, 3)):
        smaller = dataclasses.replace(variants(listings.files("a-Q4_0.gguf=1"))[0], quant=quant)  # type: ignore[arg-type]
        share = draw.uniform(0.3, 1.6)
        file = dataclasses.replace(smaller.files[0], bytes=int(model.file_bytes * share))
        models.append(scaled(models[0], dataclasses.replace(smaller, files=(file,))))
    free, ram, shared = draw.randint(1, 3000) * MIB, draw.randint(100, 4000) * MIB, draw.random() < 0.4
    device = Device("D0", "integrated" if shared else "gpu", "", free, free) if draw.random() < 0.9 else None
    budgets = Budgets.of(Machine(4, 2 * ram, ram, (device,) if device else ()), device, PROFILES[0])
    base = Plan(models[0].model, "d" if device else "cpu", 0, 4096, 4, device=device.id if device else None)
    settings = [
        Setting(dataclasses.replace(base, model=each.model, context=context, kv_type=kv_type, ubatch=ubatch), each)
        for each in models
        for context in (4096, 2048)
        for kv_type in ("f16", "q8_0", "q4_0")
        for ubatch in (512, 128)
    ]
    fast, slow = draw.uniform(5, 400) * GIB, draw.uniform(1, 5) * GIB
    known = draw.random() < 0.8

    def decode(plan: Plan, of: ModelInfo) -> float | None:
        places = {place.id: place.weights for place in placed(plan, of)}
        return 1 / (places.get("D0", 0) / fast + places["CPU"] / slow) if known else None

    def dry_run(plan: Plan) -> tuple[DeviceBytes, ...]:
        partial = plan.gpu_layers < plan.model.layers + 1 or plan.cpu_moe_layers
        return (DeviceBytes(plan.device or "CPU", "gpu", compute=(200 if partial else 100) * MIB * plan.ubatch // 512),)

    return Search(budgets, dry_run, decode, lambda each: each), settings


def test_the_pruned_search_finds_what_trying_everything_finds() -> None:
    fitting = 0
    for number in range(200):
        search, settings = a_case(number)
        best, every = search.best(settings), list(a_case(number)[0].every(a_case(number)[1]))
        assert (best.key if best else None) == max((each.key for each in every), default=None), number
        fitting += best is not None
    assert 100 < fitting < 200, "cases of both kinds"


def test_what_the_search_weighs_is_what_the_memory_room_says() -> None:
    for number in range(60):
        search, settings = a_case(number)
        for setting in settings[::5]:
            for group in search._groups(setting):
                for split in group[::2]:
                    own = {place.id: place for place in search._held(setting, split)}
                    assert own == {place.id: place for place in placed(split, setting.model.info)}


def test_the_search_is_quick_without_dry_runs_and_asks_for_few() -> None:
    for name in SHIPPED:
        asked = []

        def counted(plan: Plan, asked: list[Plan] = asked) -> tuple[DeviceBytes, ...]:
            asked.append(plan)
            return (DeviceBytes(plan.device or "CPU", "gpu", compute=100 * MIB),)

        for target in (MIXTURE, EIGHT_B):
            asked.clear()
            own = planner(target, read_snapshot(name, data_folder()), counted)
            start = time.process_time()
            own.choose(Wishes())
            assert time.process_time() - start < 0.5, "0.05 s on a quiet machine"
            assert len(asked) <= 12


# What is chosen


def chosen(target: ModelFile, machine: str, **wishes: object) -> tuple[str, Plan]:
    own = planner(target, read_snapshot(machine, data_folder()))
    model = own.choose(Wishes(**wishes))  # type: ignore[arg-type]
    return model.info.quant, planner(model, own.machine).plan(Wishes(**wishes))  # type: ignore[arg-type]


def test_an_integrated_gpu_takes_a_mixture_whole_at_the_best_quant_that_its_limit_allows() -> None:
    quant, plan = chosen(MIXTURE, "amd-780m-32gb")
    assert (quant, plan.gpu_layers, plan.cpu_moe_layers, plan.context) == ("IQ4_XS", 49, 0, 4096)
    assert [note.partition(":")[0] for note in plan.notes] == [
        "Vulkan0 shares the RAM, which does not hold 15.1 GiB of weights twice"
    ]


def test_a_small_card_takes_an_8b_whole_and_of_a_mixture_all_but_experts() -> None:
    quant, plan = chosen(EIGHT_B, "cuda-6gb-16gb")
    assert (quant, plan.gpu_layers, plan.kv_type, plan.context) == ("Q4_K_M", 37, "q8_0", 4096)
    assert plan.origins["kv_type"] == "decided"
    assert plan.notes == ("KV cache q8_0 rather than f16, for the memory it saves; --kv-type f16 keeps it",)
    quant, plan = chosen(MIXTURE, "cuda-6gb-16gb")
    assert loss(quant) <= FLOOR
    assert plan.gpu_layers == 49
    assert 20 < plan.cpu_moe_layers < 48


def test_the_gpus_limit_is_told_with_the_kernel_parameter_that_raises_it() -> None:
    own = dataclasses.replace(MIXTURE, offered=())
    told = planner(own, read_snapshot("amd-780m-32gb", data_folder())).plan(Wishes()).notes
    assert any("ttm.pages_limit=5505024 (on older kernels amdgpu.gttsize=21504)" in note for note in told)
    card = planner(own, read_snapshot("cuda-6gb-16gb", data_folder())).plan(Wishes()).notes
    assert not any("ttm" in note for note in card)


@pytest.mark.parametrize("machine", SHIPPED)
@pytest.mark.parametrize(
    "wishes",
    [
        {"context": 8192},
        {"kv_type": "q4_0"},
        {"ubatch": 300},
        {"context": 3000, "kv_type": "f16", "ubatch": 64},
        {"gpu_layers": 0},
        {"device": "cpu"},
    ],
)
def test_what_was_asked_for_is_kept(machine: str, wishes: dict[str, object]) -> None:
    _, plan = chosen(EIGHT_B, machine, **wishes)
    for name in ("context", "kv_type", "ubatch", "gpu_layers"):
        if name in wishes:
            assert getattr(plan, name) == wishes[name]
    assert "device" not in wishes or plan.device is None


@given(st.integers(1, 12), st.integers(0, 4), st.integers(4, 24), st.sampled_from(["gpu", "integrated"]))
def test_more_memory_never_gives_a_worse_plan_and_none_is_over_budget(free: int, more: int, ram: int, kind: str) -> None:
    def key(size: int, host: int) -> object:
        own = planner(EIGHT_B, a_machine(size, host, kind))
        plan, _, budgets = own._begun(Wishes())
        search = own._search(plan, Wishes(), budgets)
        found = search.best(own._over([EIGHT_B, *offered_besides(EIGHT_B)], Wishes())[1])
        assert not found or not budgets.missing(placed(found.plan, found.model.info))
        return found.key if found else ()

    assert key(free + more, ram) >= key(free, ram)  # type: ignore[operator]
    assert key(free, ram + more) >= key(free, ram)  # type: ignore[operator]


def a_machine(free: int, ram: int, kind: str) -> Machine:
    rates = {"bandwidth_bytes_per_second": 192e9, "operations_per_second": 9e12}
    device = Device("CUDA0" if kind == "gpu" else "Vulkan0", kind, "", free * GIB, free * GIB, None, **rates)  # type: ignore[arg-type]
    cpu = Device("CPU", "cpu", "", ram * GIB, ram * GIB, None, 51e9, 5e11)
    return Machine(6, ram * GIB, ram * GIB, (device, cpu))


@given(st.integers(1, 8), st.integers(9, 15), st.integers(1, 3), st.sampled_from(["f16", "q8_0", "q4_0"]))
def test_a_larger_context_never_has_more_layers_on_the_gpu(free: int, power: int, more: int, kv_type: str) -> None:
    own = planner(dataclasses.replace(EIGHT_B, offered=()), a_machine(free, 48, "gpu"))
    short, long = (own.plan(Wishes(context=1 << each, kv_type=kv_type, ubatch=512)).gpu_layers for each in (power, power + more))
    assert long <= short


# What it is sorted by


def test_speed_counts_in_steps_of_a_readers() -> None:
    assert [grade(each) for each in (None, READING - 0.1, READING, 2 * READING, 4 * READING, 1000.0, float("inf"))] == [
        0, 0, 1, 2, 3, 3, 3,
    ]  # fmt: skip


def test_losses_are_the_published_ones_and_never_made_up() -> None:
    assert (published_loss("Q4_K_M"), published_loss("BF16"), published_loss("UD-Q4_K_XL")) == (2.8, 0.0, None)
    assert loss("UD-Q4_K_XL") == loss("Q4_K_L") == loss("Q4_K_M")
    assert loss("Q1_0") == 0 < loss("UD-TQ1_0")
    assert loss("IQ9_X") == float("inf")
    assert loss("Q4_0") <= FLOOR < loss("Q3_K_L")
    assert without_kernel("cuda", "TQ2_0")
    assert without_kernel("vulkan", "TQ2_0") is None


def test_a_device_that_was_named_is_kept_also_where_the_cpu_is_faster() -> None:
    here = a_machine(8, 24, "gpu")
    slow = dataclasses.replace(here.devices[0], bandwidth_bytes_per_second=8e9)
    machine = dataclasses.replace(here, devices=(slow, here.devices[1]))
    own = planner(dataclasses.replace(EIGHT_B, offered=()), machine)
    assert own.plan(Wishes()).device is None
    assert own.plan(Wishes()).notes[0] == "on the CPU: it decodes faster there than on CUDA0, by what is predicted"
    assert own.plan(Wishes(device="CUDA0")).gpu_layers == 37


def test_a_type_without_a_kernel_stays_off_the_device_and_says_so() -> None:
    ternary = dataclasses.replace(EIGHT_B.info, quant="TQ2_0")
    own = planner(ModelFile.of(ternary, "t.gguf", "t"), read_snapshot("cuda-6gb-16gb", data_folder()))
    decision = own.decide(Wishes())
    assert decision.plan.device is None
    assert any("no kernel for TQ2_0" in each.why for each in decision.rejected)
    assert own.plan(Wishes(gpu_layers=10)).gpu_layers == 10


# Questions


def test_a_speed_that_nothing_reaches_has_the_nearest_answer() -> None:
    own = planner(EIGHT_B, read_snapshot("cpu-16gb", data_folder()))
    assert own.choose(Wishes(target_tps=5.5)).info.quant == "Q4_K_M"
    with pytest.raises(DoesNotFit) as caught:
        own.choose(Wishes(target_tps=50))
    assert caught.value.what == "no plan for qwen3-8b decodes at 50 tokens/s here"
    assert caught.value.hint.startswith("the nearest is Q4_K_M, all on the CPU, ")
    assert caught.value.hint.endswith(" tokens/s")
    unknown = dataclasses.replace(own, speeds=None)
    with pytest.raises(UsageError, match="bandwidth of this machine is not known"):
        unknown.choose(Wishes(target_tps=5))


def test_a_loss_that_no_quant_keeps_to_has_the_nearest_answer() -> None:
    own = planner(EIGHT_B, read_snapshot("cuda-6gb-16gb", data_folder()))
    assert own.choose(Wishes(max_loss=0.5)).info.quant == "Q6_K"
    with pytest.raises(DoesNotFit) as caught:
        own.choose(Wishes(max_loss=0.01))
    assert "at most 0.01 % of perplexity" in caught.value.what
    assert caught.value.hint == "the nearest is Q8_0: 0.04 %"
    with pytest.raises(DoesNotFit, match=r"at most 1 %"):
        own.plan(Wishes(max_loss=1))

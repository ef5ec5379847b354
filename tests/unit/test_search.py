"""The joint search: the same plan as trying everything, quickly, and what it is chosen by."""

import dataclasses
import functools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import zoo_cases
from tests.unit import listings
from tests.unit.test_planner import PROFILES, info
from tokencli.app.plan import dry_run_elsewhere
from tokencli.core import Device, DeviceBytes, Draft, Machine, ModelInfo, Plan
from tokencli.errors import DoesNotFit, OutOfMemory, UsageError
from tokencli.listing import variants
from tokencli.plan import quants
from tokencli.plan.choose import ALL, Wishes
from tokencli.plan.loss import _MADE_FOR, FLOOR, loss, published_loss, without_kernel
from tokencli.plan.memory import placed, refusal
from tokencli.plan.offers import offered_besides, scaled
from tokencli.plan.planner import Planner
from tokencli.plan.search import READING, Search, Setting, grade
from tokencli.plan.sizes import Budgets, ModelFile, asked_once, merged
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


ZOO = ("smollm2-135m", "lfm2-1.2b", "gemma-2-9b", "gemma-3-12b", "qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "bonsai-27b")
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

    layers = draw.choice([None, None, None, draw.randint(1, blocks + 1)])
    return Search(budgets, dry_run, decode, lambda each: each, None, layers), settings


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


def test_layers_that_were_asked_for_are_part_of_the_choice_of_a_quant() -> None:
    """All layers on six gigabytes: four bits with a smaller cache. Half of them: as many bits as stay fast enough."""
    assert chosen(EIGHT_B, "cuda-6gb-16gb", gpu_layers=ALL)[0] == "Q4_K_M"
    quant, plan = chosen(EIGHT_B, "cuda-6gb-16gb", gpu_layers=18)
    assert (loss(quant) < loss("Q4_K_M"), plan.gpu_layers) == (True, 18)
    assert chosen(MIXTURE, "amd-780m-32gb", gpu_layers=ALL)[0] == "IQ4_XS"


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


@given(
    st.integers(1, 12),
    st.integers(0, 4),
    st.integers(4, 24),
    st.sampled_from(["gpu", "integrated"]),
    st.sampled_from(["8b", "moe"]),
)
def test_more_memory_never_gives_a_worse_plan_and_none_is_over_budget(
    free: int, more: int, ram: int, kind: str, which: str
) -> None:
    """Over all quants on offer, with buffers as a dry run tells them; a shared memory counts once."""
    target = EIGHT_B if which == "8b" else MIXTURE

    def key(size: int, host: int) -> tuple[float, ...]:
        own = planner(target, a_machine(size, host, kind), some_compute)
        plan, _, budgets = own._begun(Wishes())
        search = own._search(plan, Wishes(), budgets)
        found = search.best(own._over([target, *offered_besides(target)], Wishes())[1])
        assert not found or not budgets.missing(merged((*placed(found.plan, found.model.info), *some_compute(found.plan))))
        return found.key if found else ()

    least = key(free, ram)
    assert key(free + more, ram) >= least
    assert key(free, ram + more) >= least


def some_compute(plan: Plan) -> tuple[DeviceBytes, ...]:
    partial = 0 < plan.gpu_layers < plan.model.offloadable_layers or plan.cpu_moe_layers > 0
    own = DeviceBytes(plan.device or "CPU", "gpu", compute=(140 if partial else 112) * MIB * plan.ubatch // 512)
    return (own, DeviceBytes("CPU", "cpu", compute=112 * MIB)) if partial else (own,)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "context": st.integers(256, 40_000),
            "kv_type": st.sampled_from(["f16", "q8_0", "q4_0"]),
            "ubatch": st.integers(16, 2048),
            "gpu_layers": st.integers(0, 60),
            "cpu_moe": st.integers(0, 60),
            "threads": st.integers(1, 16),
            "draft": st.sampled_from(["off", "ngram"]),
        },
    ),
    st.integers(1, 14),
    st.sampled_from(["gpu", "integrated"]),
)
def test_whatever_was_asked_for_is_in_the_plan_or_there_is_none(wishes: dict[str, object], free: int, kind: str) -> None:
    own = planner(dataclasses.replace(MIXTURE, offered=()), a_machine(free, 30, kind), some_compute)
    try:
        plan = own.plan(Wishes(**wishes))  # type: ignore[arg-type]
    except DoesNotFit:
        return
    for name in wishes.keys() - {"gpu_layers", "cpu_moe", "draft"}:
        assert getattr(plan, name) == wishes[name]
        assert plan.origins[name] == "flag"
    if "gpu_layers" in wishes:
        assert plan.gpu_layers == min(wishes["gpu_layers"], 49)  # type: ignore[type-var]
    if "cpu_moe" in wishes and plan.device:
        assert plan.cpu_moe_layers == min(wishes["cpu_moe"], 48)  # type: ignore[type-var]
    if "draft" in wishes:
        assert (plan.draft.kind if plan.draft else "off") == wishes["draft"]


def a_machine(free: int, ram: int, kind: str) -> Machine:
    rates = {"bandwidth_bytes_per_second": 192e9, "operations_per_second": 9e12}
    device = Device("CUDA0" if kind == "gpu" else "Vulkan0", kind, "", free * GIB, free * GIB, None, **rates)  # type: ignore[arg-type]
    cpu = Device("CPU", "cpu", "", ram * GIB, ram * GIB, None, 51e9, 5e11)
    return Machine(6, ram * GIB, ram * GIB, (device, cpu))


@given(
    st.integers(1, 8),
    st.integers(9, 15),
    st.integers(1, 3),
    st.sampled_from(["f16", "q8_0", "q4_0"]),
    st.sampled_from(["gpu", "integrated"]),
    st.sampled_from(ZOO),
)
def test_a_larger_context_never_has_more_on_the_gpu(free: int, power: int, more: int, kv_type: str, kind: str, name: str) -> None:
    """Whole layers, and of a mixture the experts that stay behind; where both fit, and the model has a cache at all."""
    target = ModelFile.of(zoo_cases.info(name), "m.gguf", name)
    own = planner(target, a_machine(free, 48, kind), some_compute)
    if refusal(target.info, kv_type, "auto"):
        return
    try:
        short, long = (own.plan(Wishes(context=1 << each, kv_type=kv_type, ubatch=512)) for each in (power, power + more))
    except DoesNotFit:
        return
    assert long.gpu_layers <= short.gpu_layers
    assert long.gpu_layers < short.gpu_layers or long.cpu_moe_layers >= short.cpu_moe_layers


@given(st.integers(1, 12), st.integers(4, 24), st.sampled_from(["gpu", "integrated"]), st.sampled_from(ZOO), st.integers(9, 16))
def test_no_plan_is_better_without_flash_attention(free: int, ram: int, kind: str, name: str, power: int) -> None:
    """So it is no candidate: `auto` needs no more memory in any term, allows every cache that `off` allows, and more."""

    def compute(plan: Plan) -> tuple[DeviceBytes, ...]:  # FACTS: 108 MiB with it, 308 without
        return (DeviceBytes(plan.device or "CPU", "gpu", compute=(308 if plan.flash_attention == "off" else 108) * MIB),)

    target = ModelFile.of(zoo_cases.info(name), "m.gguf", name)
    own = planner(target, a_machine(free, ram, kind), compute)
    search, auto = own._over([target], Wishes(context=1 << power))
    plans = [dataclasses.replace(each.plan, flash_attention="off") for each in auto]
    off = [Setting(each, target) for each in plans if not refusal(target.info, each.kv_type, "off")]
    with_it = search.best(auto)
    without = dataclasses.replace(search, _known={}).best(off)
    assert without is None or (with_it is not None and with_it.key >= without.key)


def test_a_cache_that_the_device_refuses_is_not_taken() -> None:
    def refusing(plan: Plan) -> tuple[DeviceBytes, ...]:
        if plan.device and plan.kv_type != "f16":
            raise OutOfMemory("llama.cpp could not make a context")
        return ()

    here = read_snapshot("cuda-6gb-16gb", data_folder())
    assert planner(EIGHT_B, here).choose(Wishes()).quant == "Q4_K_M"
    own = planner(EIGHT_B, here, refusing)
    plan = dataclasses.replace(own, target=own.choose(Wishes())).plan(Wishes())
    assert (plan.kv_type, plan.device) == ("f16", "CUDA0")


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


@pytest.mark.parametrize("name", [each for each in quants._ORDER if each not in _MADE_FOR])
def test_every_quant_that_may_be_taken_has_a_loss_to_sort_by(name: str) -> None:
    """Without one it is never taken, and no --max-loss accepts it; with a publisher's mark it is no worse known."""
    assert 0 <= loss(name) < float("inf")
    assert loss(f"UD-{name}") == loss(name)


def test_eight_bits_with_a_publishers_mark_are_taken() -> None:
    eight = dataclasses.replace(EIGHT_B.offered[-1], quant="UD-Q8_K_XL")
    own = planner(dataclasses.replace(EIGHT_B, offered=(eight,)), a_machine(24, 24, "gpu"))
    assert own.choose(Wishes(max_loss=0.5)).quant == "UD-Q8_K_XL"


@pytest.mark.parametrize("copied", [16e9, 30e9, 34e9])
def test_below_the_floor_no_quality_is_given_up_for_speed_and_the_loss_is_told(copied: float) -> None:
    """At 30 GB/s one bit a weight would be in the grade above: 874 % of perplexity for a few tokens/s."""
    known = read_snapshot("cpu-16gb", data_folder())
    blind = tuple(dataclasses.replace(each, bandwidth_bytes_per_second=None) for each in known.devices)
    here = dataclasses.replace(known, devices=blind, memory_bandwidth=int(copied))
    own = planner(MIXTURE, here)
    taken = own.choose(Wishes())
    assert taken.quant == "UD-IQ2_M"
    plan = dataclasses.replace(own, target=taken).plan(Wishes())
    assert plan.kv_type == "f16"
    assert plan.notes == (
        "UD-IQ2_M: loses about 38 % of perplexity, where up to 8 % are accepted: "
        "a model of fewer parameters with more bits may answer better",
    )
    smaller = dataclasses.replace(own, target=dataclasses.replace(taken, offered=own.target.offered))
    assert smaller.why("UD-IQ1_S", Wishes()).endswith("loses about 874 % of perplexity; UD-IQ2_M fits as well and loses less")


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


def test_a_quant_whose_header_is_not_here_counts_as_of_the_type_it_is_named_after() -> None:
    """So that a calibration by tensor types prices it as such, not as the one whose header is here."""
    by_quant = {each.info.quant: each.info.type_bytes for each in offered_besides(EIGHT_B)}
    for quant, tensor_type in (("Q8_0", "Q8_0"), ("Q5_K_M", "Q5_K"), ("Q6_K", "Q6_K")):
        assert set(by_quant[quant]) == {tensor_type}
    assert set(EIGHT_B.info.type_bytes) >= {"Q4_K", "Q6_K"}, "a header tells the mix"


def test_a_cpu_whose_speed_alone_is_known_does_not_win_for_that() -> None:
    """A real computer: `doctor` has measured its memory, nothing tells its card's."""
    known = read_snapshot("cuda-6gb-16gb", data_folder())
    blind = tuple(dataclasses.replace(each, bandwidth_bytes_per_second=None) for each in known.devices)
    here = dataclasses.replace(known, devices=blind, memory_bandwidth=60_000_000_000)
    small = dataclasses.replace(EIGHT_B, offered=())
    own = planner(small, here)
    there = own.plan(Wishes())
    assert own.plan(Wishes(device="cpu")).predicted.decode_tokens_per_second
    without = dataclasses.replace(here, memory_bandwidth=None)
    assert (there.device, there.gpu_layers) == ("CUDA0", planner(small, without).plan(Wishes()).gpu_layers)


# Dry runs are what a decision waits for


def test_a_dry_run_is_asked_once_for_all_that_no_buffer_depends_on() -> None:
    asked: list[Plan] = []

    def sizes(plan: Plan) -> tuple[DeviceBytes, ...]:
        asked.append(plan)
        return (DeviceBytes("CPU", "cpu", compute=len(asked)),)

    once = asked_once(sizes)
    plan = planner(EIGHT_B, read_snapshot("cuda-6gb-16gb", data_folder())).plan(Wishes())
    same = dataclasses.replace(plan, threads=1, notes=("another",), origins={}, profile=None, load_mode="mmap")
    assert once(plan) == once(same) == once(plan)
    draft = Draft("model", "d.gguf", None, 4, 0.5)
    for changed in (
        {"model": dataclasses.replace(plan.model, file="other.gguf")}, {"device": None}, {"gpu_layers": 1}, {"cpu_moe_layers": 1},
        {"extra_buffers": False}, {"draft": draft}, {"context": 512}, {"batch": 64}, {"ubatch": 64}, {"kv_type": "q4_0"},
        {"flash_attention": "off"},
    ):  # fmt: skip
        before = len(asked)
        assert once(dataclasses.replace(plan, **changed)) == (DeviceBytes("CPU", "cpu", compute=before + 1),), changed
    assert len(asked) == 12


def test_for_a_machine_that_is_not_here_the_cpu_is_asked_once_for_each_setting() -> None:
    """64 questions of a mixture's splits had 14 answers, and took 4 s of a `plan`."""
    asked: list[Plan] = []

    def on_cpu(plan: Plan) -> tuple[DeviceBytes, ...]:
        asked.append(plan)
        return (DeviceBytes("CPU", "cpu", compute=112 * MIB),)

    ask = functools.partial(dry_run_elsewhere, asked_once(on_cpu))
    small = dataclasses.replace(MIXTURE, offered=())
    decision = planner(small, read_snapshot("cuda-6gb-16gb", data_folder()), ask).decide(Wishes())
    assert decision.plan.cpu_moe_layers > 0
    assert {(each.device, each.gpu_layers, each.cpu_moe_layers) for each in asked} == {(None, 0, 0)}
    settings = [(each.context, each.kv_type, each.ubatch) for each in asked]
    assert len(settings) == len(set(settings)) <= 20


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


def test_a_speed_is_asked_of_a_split_that_was_asked_for_too() -> None:
    own = planner(dataclasses.replace(EIGHT_B, offered=()), read_snapshot("cuda-6gb-16gb", data_folder()))
    assert own.plan(Wishes(gpu_layers=30, target_tps=5)).gpu_layers == 30
    with pytest.raises(DoesNotFit, match="decodes at 100 tokens/s here") as caught:
        own.plan(Wishes(gpu_layers=30, target_tps=100))
    assert caught.value.hint.startswith("the nearest is Q4_K_M, 30 of 37 layers on CUDA0, KV f16: about ")
    with pytest.raises(UsageError, match="--gpu-layers 0 puts nothing on CUDA0"):
        own.plan(Wishes(gpu_layers=0, device="CUDA0"))


def test_a_loss_that_no_quant_keeps_to_has_the_nearest_answer() -> None:
    own = planner(EIGHT_B, read_snapshot("cuda-6gb-16gb", data_folder()))
    assert own.choose(Wishes(max_loss=0.5)).info.quant == "Q6_K"
    with pytest.raises(DoesNotFit) as caught:
        own.choose(Wishes(max_loss=0.01))
    assert "at most 0.01 % of perplexity" in caught.value.what
    assert caught.value.hint == "the nearest is Q8_0: 0.04 %"
    with pytest.raises(DoesNotFit, match=r"at most 1 %"):
        own.plan(Wishes(max_loss=1))

"""The first planner: which device, how many layers, which draft, and the reasons; the dry run is a function in the test."""

import dataclasses
from typing import Any

import pytest

from tests import zoo_cases
from tokencli.core import (
    Device,
    DeviceBytes,
    DeviceKind,
    LargeTensor,
    Machine,
    ModelInfo,
    Plan,
    Prediction,
    Profile,
    Quirk,
    Vocabulary,
)  # fmt: skip
from tokencli.errors import DoesNotFit, UsageError
from tokencli.plan.choose import ALL, Wishes, choose_draft, same_card
from tokencli.plan.fixes import Fix
from tokencli.plan.memory import placed
from tokencli.plan.planner import Planner
from tokencli.plan.settings import Settings
from tokencli.plan.sizes import ModelFile
from tokencli.plan.speed import predict
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import read_snapshot
from tokencli.world.settings import read_speeds

MIB, GIB = 1 << 20, 1 << 30
LAYERS = 10


def info(layers: int = LAYERS, block: int = 100 * MIB, context_trained: int | None = 32768) -> ModelInfo:
    """A model of equal blocks, 4 KV heads of 128."""
    each = (0,) * layers
    return ModelInfo(
        architecture="llama", quant="Q4_K_M", layers=layers, context_trained=context_trained, embedding_length=2048,
        vocabulary=Vocabulary(32000, "gpt2", 1, 2, False, False, "0" * 16), chat_template=None,
        file_bytes=layers * block + 200 * MIB, weight_bytes=layers * block + 200 * MIB, block_bytes=(block,) * layers,
        expert_bytes=each, input_bytes=100 * MIB, output_bytes=100 * MIB, tied=False, kv_heads=(4,) * layers,
        key_lengths=(128,) * layers, value_lengths=(128,) * layers, sliding_layers=(False,) * layers,
        recurrent_layers=(False,) * layers, recurrent_bytes=each,
    )  # fmt: skip


KV_PER_BLOCK = 4096 * 4 * (128 + 128) * 2

TARGET = ModelFile.of(info(), "target.gguf", "target")
SMALL = ModelFile.of(info(2, 50 * MIB), "small.gguf", "small")

PROFILES = tuple(
    Profile(name, name, kind, 0.1, 4096, 2048, 512, 512, "f16", "auto", "off", 4)
    for name, kind in (("cpu", "cpu"), ("amd-780m-vulkan", "integrated"), ("cuda-6gb", "gpu"))
)

CARD = Device("CUDA0", "gpu", "NVIDIA GeForce RTX 2060", 6 * GIB, 5 * GIB)
IGPU = Device("Vulkan0", "integrated", "AMD Radeon 780M (RADV PHOENIX)", 16 * GIB, 12 * GIB)
LAVAPIPE = Device("Vulkan0", "gpu", "llvmpipe (LLVM 15.0.6, 256 bits)", 2 * GIB, 2 * GIB)
CPU = Device("CPU", "cpu", "a CPU", 16 * GIB, 16 * GIB)


def machine(*devices: Device, ram: int = 16 * GIB) -> Machine:
    return Machine(cores=8, ram_total_bytes=ram, ram_available_bytes=ram, devices=(*devices, CPU))


def dry_run(plan: Plan) -> tuple[DeviceBytes, ...]:
    """100 MiB at full offload, 200 at partial; a draft model beside adds 50."""
    compute = 100 * MIB if plan.gpu_layers == plan.model.offloadable_layers else 200 * MIB
    compute += 50 * MIB if plan.draft and plan.draft.kind == "model" else 0
    return (DeviceBytes(plan.device or "CPU", "gpu", compute=compute),)


def plan(here: Machine, draft: ModelFile | None = None, target: ModelFile = TARGET, **wishes: object) -> Plan:
    return Planner(target, here, PROFILES, dry_run, draft).plan(Wishes(**wishes))


def card_with(free: int) -> Machine:
    return machine(dataclasses.replace(CARD, free_bytes=free))


AS_IT_IS = {"context": 4096, "kv_type": "f16"}  # nothing left to decide but the split


def needed(layers: int) -> int:
    """What the test's model takes on a device, compute included, with 10 % headroom on top."""
    blocks = layers - 1
    compute = 100 * MIB if layers == LAYERS + 1 else 200 * MIB
    return int((100 * MIB + blocks * (100 * MIB + KV_PER_BLOCK) + compute) / 0.9) + 1


def test_without_a_gpu_everything_is_on_the_cpu_without_a_dry_run() -> None:
    def never(_plan: Plan) -> tuple[DeviceBytes, ...]:
        raise AssertionError("nothing to ask")

    found = Planner(TARGET, machine(), PROFILES, never).plan(Wishes())
    assert (found.gpu_layers, found.device, found.backend, found.profile) == (0, None, "cpu", "cpu")
    assert (found.threads, found.context, found.notes) == (8, 4096, ())


@pytest.mark.parametrize("layers", [1, 2, 5, 10, 11])
def test_as_many_layers_as_the_free_memory_holds_with_headroom(layers: int) -> None:
    assert plan(card_with(needed(layers)), **AS_IT_IS).gpu_layers == layers
    if layers < LAYERS + 1:  # at full offload the compute buffer shrinks, so one byte less of that is its own case
        assert plan(card_with(needed(layers) - 4), **AS_IT_IS).gpu_layers == layers - 1


def test_a_byte_short_of_full_offload_is_a_partial_one_and_says_so() -> None:
    found = plan(card_with(needed(LAYERS + 1) - 4), **AS_IT_IS)
    assert 0 < found.gpu_layers < LAYERS + 1
    assert f"{found.gpu_layers} of 11 layers on CUDA0" in found.notes[0]


def test_no_room_at_all_is_the_cpu_and_says_so() -> None:
    found = plan(card_with(100 * MIB))
    assert (found.gpu_layers, found.device, found.backend) == (0, None, "cpu")
    assert found.notes[0].startswith("on the CPU: ")


def test_an_explicit_count_is_never_changed() -> None:
    tight = plan(card_with(100 * MIB), gpu_layers=7)
    assert tight.gpu_layers == 7
    assert "7 layers need 0.6 GiB more than should be used of CUDA0, as asked for" in tight.notes
    assert plan(card_with(100 * MIB), gpu_layers=ALL).gpu_layers == 11
    assert plan(card_with(100 * MIB), gpu_layers=99).gpu_layers == 11
    assert plan(machine(CARD), gpu_layers=0).device is None


def test_a_longer_context_takes_layers_away() -> None:
    here = card_with(needed(LAYERS + 1))
    assert plan(here, context=4096).gpu_layers == 11
    assert plan(here, context=32768).gpu_layers < 11
    assert plan(here, context=32768, kv_type="q4_0").gpu_layers > plan(here, context=32768).gpu_layers


def test_discrete_before_integrated_and_software_never_by_itself() -> None:
    assert plan(machine(IGPU, CARD)).device == "CUDA0"
    assert plan(machine(IGPU)).profile == "amd-780m-vulkan"
    assert plan(machine(LAVAPIPE)).device is None
    assert plan(machine(LAVAPIPE, IGPU), gpu_layers=ALL).device == IGPU.id
    asked = plan(machine(LAVAPIPE), gpu_layers=3)
    assert asked.device == "Vulkan0"
    assert "is a software device" in asked.notes[0]


def test_a_device_by_name() -> None:
    assert plan(machine(IGPU, CARD), device="vulkan0").device == "Vulkan0"
    assert plan(machine(CARD), device="cpu").device is None
    with pytest.raises(UsageError, match="lists no device Vulkan7"):
        plan(machine(CARD), device="Vulkan7")


PHOENIX = Quirk("780M", "loads without mmap have failed", "a report", prefer="vulkan", load_mode="mmap")


def with_quirks(*quirks: Quirk) -> tuple[Profile, ...]:
    return tuple(dataclasses.replace(each, quirks=quirks if each.kind == "integrated" else ()) for each in PROFILES)


def test_a_quirk_decides_how_a_device_loads_and_no_other_device() -> None:
    profiles = with_quirks(PHOENIX)
    assert Planner(TARGET, machine(IGPU), profiles, dry_run).plan(Wishes()).load_mode == "mmap"
    assert Planner(TARGET, machine(CARD), profiles, dry_run).plan(Wishes()).load_mode == "auto"
    assert Planner(TARGET, machine(IGPU), profiles, dry_run).plan(Wishes(gpu_layers=0)).load_mode == "auto"


def listed_by(backend: str, kind: DeviceKind, name: str, pci: str | None, total: int = 6 * GIB) -> Device:
    return Device(f"{backend}0", kind, name, total, total - GIB, pci_id=pci)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (("CUDA", "gpu", "RTX 2060", "0000:01:00.0"), ("Vulkan", "gpu", "another name", "0000:01:00.0"), True),
        (("CUDA", "gpu", "RTX 2060", "0000:01:00.0"), ("Vulkan", "gpu", "RTX 2060", "0000:02:00.0"), False),
        (("CUDA", "gpu", "RTX 2060", None), ("Vulkan", "gpu", "RTX 2060 (driver)", "0000:01:00.0"), True),
        (("CUDA", "gpu", "RTX 2060", None, 6 * GIB), ("Vulkan", "gpu", "RTX 2060", None, 12 * GIB), False),
        (("CUDA", "gpu", "RTX 2060", None), ("CUDA", "gpu", "RTX 2060", None), False),
    ],
)
def test_one_card_by_two_backends(first: tuple[Any, ...], second: tuple[Any, ...], same: bool) -> None:
    one, other = listed_by(*first), listed_by(*second)
    assert same_card(one, other) == same_card(other, one) == same


def test_each_kind_of_card_has_its_backend_and_a_quirk_may_say_otherwise() -> None:
    cuda, vulkan = (listed_by(name, "gpu", "RTX 2060", "0000:01:00.0") for name in ("CUDA", "Vulkan"))
    assert plan(machine(vulkan, cuda)).device == "CUDA0"
    slow = Quirk("RTX 2060", "CUDA is slower here", "a measurement", prefer="vulkan")
    assert Planner(TARGET, machine(vulkan, cuda), with_quirks(slow), dry_run).plan(Wishes()).device == "Vulkan0"
    assert plan(machine(vulkan, cuda), device="Vulkan0").device == "Vulkan0"
    rocm = listed_by("ROCm", "integrated", "AMD Radeon 890M", "0000:04:00.0", 64 * GIB)
    assert plan(machine(rocm, dataclasses.replace(rocm, id="Vulkan0"))).device == "Vulkan0", "report A1-31"


def test_what_an_earlier_load_taught_is_left_free_and_said() -> None:
    here = card_with(needed(LAYERS + 1))
    planner = Planner(TARGET, here, PROFILES, dry_run, margin=lambda device: 300 * MIB if device.id == "CUDA0" else 0)
    found = planner.plan(Wishes())
    assert found.gpu_layers < LAYERS + 1
    assert found.notes[0] == (
        "0.3 GiB of CUDA0 are left free: a llama model that should have fitted did not (tokencli doctor --forget)"
    )


def test_a_second_program_on_the_card_plans_around_the_first() -> None:
    """Report A2-05: what is free counts, and it is asked for each time."""
    assert plan(card_with(needed(LAYERS + 1))).gpu_layers == LAYERS + 1
    assert plan(card_with(needed(LAYERS + 1) - 500 * MIB)).gpu_layers < LAYERS - 2


def test_slow_cores_get_no_thread() -> None:
    hybrid = dataclasses.replace(machine(), cores=12, performance_cores=4, efficiency_cores=8)
    assert plan(hybrid).threads == 4
    assert plan(hybrid, threads=12).threads == 12


def test_layers_without_a_gpu_are_refused() -> None:
    with pytest.raises(UsageError, match=r"llama\.cpp lists none here"):
        plan(machine(), gpu_layers=3)


def test_flags_go_before_the_profile_and_the_origin_is_told() -> None:
    found = plan(machine(), context=1000, threads=3)
    assert (found.context, found.threads, found.ubatch) == (1000, 3, 512)
    assert found.origins["context"] == found.origins["threads"] == "flag"
    assert found.origins["ubatch"] == "profile"
    assert plan(machine()).origins["threads"] == "machine"


@pytest.mark.parametrize(("busy", "threads"), [(None, 8), (0.0, 8), (0.4, 8), (0.9, 7), (2.2, 6), (7.9, 1), (30.0, 1)])
def test_cores_that_other_programs_keep_busy_are_left_to_them(busy: float | None, threads: int) -> None:
    found = plan(dataclasses.replace(machine(), busy_cores=busy))
    assert found.threads == threads
    assert (f"{threads} of 8 cores used: other programs keep {busy} of them busy" in found.notes) == (threads < 8)


def test_threads_that_were_asked_for_are_taken_on_a_busy_computer_too() -> None:
    found = plan(dataclasses.replace(machine(), busy_cores=5.0), threads=8)
    assert (found.threads, found.notes) == (8, ())


def test_a_models_own_limit_bounds_the_default_context_but_not_a_flag() -> None:
    short = ModelFile.of(info(context_trained=2048), "short.gguf", "short")
    default = plan(machine(), target=short)
    assert (default.context, default.origins["context"]) == (2048, "model")
    longer = plan(machine(), target=short, context=4000)
    assert longer.context == 4000
    assert longer.notes == ("a context of 4000 is more than the 2048 the model was trained for",)


def test_an_unknown_profile_names_the_known_ones() -> None:
    assert plan(machine(CARD), profile="cpu").profile == "cpu"
    with pytest.raises(UsageError) as caught:
        plan(machine(), profile="laptop")
    assert "amd-780m-vulkan" in caught.value.hint


@pytest.mark.parametrize("wish", [None, "auto", "off"])
def test_no_draft_unless_asked_for(wish: str | None) -> None:
    assert plan(machine(), draft=None, **{"draft_tokens": 6}).draft is None
    assert Planner(TARGET, machine(), PROFILES, dry_run).plan(Wishes(draft=wish)).draft is None


def test_lookup_and_a_model_as_draft_at_the_depth_asked_for() -> None:
    lookup = Planner(TARGET, machine(), PROFILES, dry_run).plan(Wishes(draft="ngram")).draft
    assert lookup
    assert (lookup.kind, lookup.max_tokens, lookup.adaptive) == ("ngram", 4, True)
    model = plan(machine(), SMALL, draft_tokens=7).draft
    assert model
    assert (model.kind, model.file, model.max_tokens, model.device, model.adaptive) == ("model", "small.gguf", 7, None, False)


def test_a_depth_nobody_asked_for_is_small_where_each_token_of_it_is_a_state() -> None:
    profile = dataclasses.replace(PROFILES[0], draft_tokens=8)
    for flag, expected in ((None, 4), (6, 6)):
        settings = Settings({"draft": "ngram", "draft_tokens": flag}, {}, profile)
        draft = choose_draft(settings, None, recurrent=True)
        assert draft
        assert draft.max_tokens == expected


def test_a_draft_goes_beside_the_target_only_where_all_of_both_fits() -> None:
    own = 100 * MIB + 2 * (50 * MIB + KV_PER_BLOCK) + 50 * MIB
    both = needed(LAYERS + 1) + int(own / 0.9) + 1
    beside = plan(card_with(both), SMALL)
    assert beside.draft
    assert (beside.gpu_layers, beside.draft.device) == (11, "CUDA0")
    short = plan(card_with(both - 8), SMALL)
    assert short.draft
    assert (short.gpu_layers, short.draft.device) == (11, None), "a draft never pushes layers off the GPU"
    assert "the draft runs on the CPU: CUDA0 has no room for it" in short.notes
    partial = plan(card_with(needed(5)), SMALL)
    assert partial.draft
    assert (partial.gpu_layers, partial.draft.device) == (5, None)


def test_recurrent_state_is_priced_once_more_per_token_that_can_be_taken_back() -> None:
    state = 20 * MIB
    hybrid = dataclasses.replace(
        info(), architecture="lfm2", recurrent_layers=(True,) * LAYERS, recurrent_bytes=(state,) * LAYERS, kv_heads=(0,) * LAYERS
    )
    target = ModelFile.of(hybrid, "hybrid.gguf", "hybrid")
    weights = 100 * MIB + LAYERS * 100 * MIB + 100 * MIB
    without = int((weights + LAYERS * state) / 0.9) + 1
    assert plan(card_with(without), target=target).gpu_layers == 11
    assert plan(card_with(without), target=target, draft=None, **{"draft_tokens": 4}).gpu_layers == 11
    drafted = Planner(target, card_with(without), PROFILES, dry_run).plan(Wishes(draft="ngram"))
    assert drafted.gpu_layers < 11
    room = int((weights + 5 * LAYERS * state) / 0.9) + 1
    assert Planner(target, card_with(room), PROFILES, dry_run).plan(Wishes(draft="ngram")).gpu_layers == 11


def test_a_cache_that_the_ram_does_not_hold_does_not_fit() -> None:
    with pytest.raises(
        DoesNotFit, match=r"target needs \d+\.\d GiB at a context of 1000000, \d+\.\d GiB more than may be used here"
    ):
        plan(machine(ram=8 * GIB), context=1000000, kv_type="f16")


def test_the_extra_buffers_verdict_is_told() -> None:
    found = Planner(TARGET, machine(), PROFILES, dry_run, extra_buffers=False).plan(Wishes())
    assert not found.extra_buffers
    assert "without the CPU's extra buffers" in found.notes[0]


# Mixtures of experts


SIX_GB = read_snapshot("cuda-6gb-16gb", data_folder())
MIXTURE = ModelFile.of(zoo_cases.info("qwen3-30b-a3b"), "mixture.gguf", "qwen3-30b-a3b")
BLOCKS = MIXTURE.info.layers


def mixture(here: Machine = SIX_GB, **wishes: object) -> Plan:
    return plan(here, target=MIXTURE, **wishes)


def on_the_card(found: Plan, here: Machine = SIX_GB, cpu_moe_layers: int | None = None) -> int:
    """Bytes of a plan by which its card's memory with 10 % headroom is exceeded; negative where some is left."""
    tried = dataclasses.replace(found, cpu_moe_layers=found.cpu_moe_layers if cpu_moe_layers is None else cpu_moe_layers)
    (_, card), (compute,) = placed(tried, MIXTURE.info), dry_run(tried)
    return card.total + compute.compute - int(0.9 * here.devices[0].free_bytes)


def test_a_mixture_keeps_the_experts_of_the_fewest_blocks_off_a_small_card() -> None:
    found = mixture()
    assert (found.device, found.gpu_layers) == ("CUDA0", BLOCKS + 1)
    assert 30 < found.cpu_moe_layers < BLOCKS
    assert on_the_card(found) <= 0 < on_the_card(found, cpu_moe_layers=found.cpu_moe_layers - 1)
    assert found.notes[:-1] == (
        f"49 of 49 layers on CUDA0, the experts of the first {found.cpu_moe_layers} blocks on the CPU: "
        "4.7 GiB may be used there, which does not hold all of the model with its context",
    )
    assert found.notes[-1].endswith("of RAM that may be used now: what does not stay there is read from the disk again")


def test_a_mixture_that_fits_whole_is_left_whole() -> None:
    found = mixture(machine(dataclasses.replace(CARD, free_bytes=24 * GIB)))
    assert (found.gpu_layers, found.cpu_moe_layers, found.notes) == (BLOCKS + 1, 0, ())


def test_three_dry_runs_are_enough() -> None:
    asked = []

    def counted(each: Plan) -> tuple[DeviceBytes, ...]:
        asked.append(each)
        return dry_run(each)

    tight = machine(dataclasses.replace(CARD, free_bytes=GIB), ram=32 * GIB)
    found = Planner(MIXTURE, tight, PROFILES, counted).plan(Wishes())
    assert found.cpu_moe_layers == BLOCKS
    assert len(asked) <= 3


def test_with_all_experts_on_the_cpu_whole_layers_follow() -> None:
    tight = machine(dataclasses.replace(CARD, free_bytes=GIB), ram=32 * GIB)
    found = mixture(tight)
    assert 0 < found.gpu_layers < BLOCKS + 1
    assert found.cpu_moe_layers == BLOCKS
    assert on_the_card(found, tight) <= 0 < on_the_card(dataclasses.replace(found, gpu_layers=found.gpu_layers + 1), tight)
    assert f"{found.gpu_layers} of 49 layers on CUDA0, the experts of the first 48 blocks on the CPU: " in found.notes[0]
    nothing = mixture(machine(dataclasses.replace(CARD, free_bytes=100 * MIB), ram=32 * GIB))
    assert (nothing.gpu_layers, nothing.device, nothing.cpu_moe_layers) == (0, None, 0)


def test_a_wish_for_experts_is_kept() -> None:
    here = machine(CARD, ram=32 * GIB)
    assert mixture(here, cpu_moe=45).cpu_moe_layers == 45
    assert mixture(here, cpu_moe=45).notes == ()
    assert mixture(here, cpu_moe=ALL).cpu_moe_layers == mixture(here, cpu_moe=10**12).cpu_moe_layers == BLOCKS
    none = mixture(here, cpu_moe=0)
    assert (none.cpu_moe_layers, 0 < none.gpu_layers < BLOCKS) == (0, True)
    asked = mixture(here, gpu_layers=ALL)
    assert (asked.gpu_layers, asked.cpu_moe_layers) == (BLOCKS + 1, 0)
    assert "layers need" in asked.notes[0]
    both = mixture(here, gpu_layers=20, cpu_moe=40)
    assert (both.gpu_layers, both.cpu_moe_layers) == (20, 40)
    with pytest.raises(UsageError, match="target has no experts"):
        plan(machine(CARD), cpu_moe=3)


def test_experts_on_the_cpu_are_among_the_changes_that_save_memory_where_the_ram_holds_them() -> None:
    def fixes(here: Machine, target: ModelFile = MIXTURE, **wishes: object) -> dict[str, Fix]:
        decision = Planner(target, here, PROFILES, dry_run).decide(Wishes(**wishes))
        return {each.change: each for each in decision.fixes}

    here = machine(CARD, ram=32 * GIB)
    kept = mixture(here).cpu_moe_layers
    fix = fixes(here)["--cpu-moe all"]
    assert (fix.device, fix.bytes) == ("CUDA0", sum(MIXTURE.info.expert_bytes[kept:]))
    assert fixes(here)["--kv-type q8_0"].device is None
    for none in (fixes(here, cpu_moe=ALL), fixes(here, TARGET), fixes(SIX_GB)):
        assert "--cpu-moe all" not in none


def test_a_wish_for_more_experts_than_the_ram_holds_is_better_left_out() -> None:
    with pytest.raises(DoesNotFit) as caught:
        mixture(cpu_moe=ALL)
    assert caught.value.hint == "leaving out --cpu-moe would make it fit"


def test_the_nearest_miss_of_a_split_is_told_with_what_would_make_it_fit() -> None:
    """The card and the RAM together hold the model, but not with so long a context; the RAM alone never would."""
    with pytest.raises(DoesNotFit) as caught:
        mixture(context=40_000, kv_type="f16")
    missing = float(caught.value.what.split(" GiB more than")[0].rpartition(" ")[2])
    assert missing < 2
    context = int(caught.value.hint.removeprefix("--context ").removesuffix(" would make it fit"))
    assert mixture(context=context, kv_type="f16").gpu_layers == BLOCKS + 1


# What a device refuses


WIDE = dataclasses.replace(  # an output of 100 MiB, whose trial result is larger, and blocks with a matrix of 80
    TARGET.info,
    large_tensors=(
        LargeTensor("output.weight", None, 90 * MIB, 300 * MIB, False),
        LargeTensor("blk.9.ffn_up.weight", 9, 80 * MIB, 200 * MIB, False),
    ),
)


def wide(limit: int | None, **wishes: object) -> Plan:
    target = ModelFile.of(WIDE, "wide.gguf", "wide")
    planner = Planner(target, machine(CARD), PROFILES, dry_run, tensor_limit=lambda _device: limit)
    return planner.decide(Wishes(**wishes)).plan


@pytest.mark.parametrize(
    ("limit", "moved", "note"),
    [
        (None, 0, None),
        (300 * MIB, 0, None),
        (250 * MIB, 90, "output.weight (90 MiB) left on the CPU: CUDA0 takes no matrix, or result of one, above 250 MiB"),
        (
            128 * MIB,
            170,
            "output.weight and 1 more (170 MiB) left on the CPU: CUDA0 takes no matrix, or result of one, above 128 MiB",
        ),
    ],
)
def test_what_is_too_large_for_a_device_is_planned_on_the_cpu_and_said(limit: int | None, moved: int, note: str | None) -> None:
    host, card = wide(limit).devices
    usual_host, usual_card = wide(None).devices
    assert (usual_card.weights - card.weights, host.weights - usual_host.weights) == (moved * MIB, moved * MIB)
    assert [each for each in wide(limit).notes if "left on the CPU" in each] == ([note] if note else [])


def test_what_is_on_the_cpu_anyway_is_not_said() -> None:
    assert wide(128 * MIB, gpu_layers=1).notes == (
        "output.weight (90 MiB) left on the CPU: CUDA0 takes no matrix, or result of one, above 128 MiB",
    )
    assert wide(128 * MIB, gpu_layers=0).notes == ()


# Speeds


def test_plans_alternatives_and_fixes_have_the_speed_that_a_known_machine_should_reach() -> None:
    speeds = read_speeds(data_folder())
    decision = Planner(MIXTURE, SIX_GB, PROFILES, dry_run, speeds=speeds).decide(Wishes())
    predicted = decision.plan.predicted
    assert predicted == predict(decision.plan, MIXTURE.info, SIX_GB, speeds)
    assert predicted.origin == "predicted"
    assert 15 < predicted.decode_tokens_per_second < 60  # type: ignore[operator]
    assert Planner(MIXTURE, SIX_GB, PROFILES, dry_run, speeds=speeds).plan(Wishes()).predicted == predicted
    factors = {fix.change: fix.decode_factor for fix in decision.fixes}
    assert 1 <= factors["--kv-type q8_0"] < 1.1  # type: ignore[operator]
    assert factors["--context 2048"] == 1, "decode is predicted behind a short prompt"
    here = machine(dataclasses.replace(CARD, bandwidth_bytes_per_second=192e9), ram=32 * GIB)
    known = dataclasses.replace(here, devices=(here.devices[0], dataclasses.replace(CPU, bandwidth_bytes_per_second=51e9)))
    on_both = Planner(MIXTURE, known, PROFILES, dry_run, speeds=speeds).decide(Wishes())
    (cpu,) = on_both.alternatives
    assert cpu.predicted.decode_tokens_per_second < on_both.plan.predicted.decode_tokens_per_second  # type: ignore[operator]
    assert cpu.predicted.prefill_tokens_per_second is None
    (fewer,) = (fix for fix in on_both.fixes if fix.change == "--cpu-moe all")
    assert fewer.decode_factor
    assert 0.5 < fewer.decode_factor < 1


def test_without_a_known_bandwidth_no_speed_is_made_up() -> None:
    decision = Planner(TARGET, machine(CARD), PROFILES, dry_run, speeds=read_speeds(data_folder())).decide(Wishes())
    assert decision.plan.predicted == Prediction()
    assert {fix.decode_factor for fix in decision.fixes} == {None}


# The draft as a term


def test_a_draft_model_is_a_term_of_its_own() -> None:
    decision = Planner(TARGET, machine(CARD), PROFILES, draft_dry_run, SMALL).decide(Wishes())
    alone = Planner(TARGET, machine(CARD), PROFILES, draft_dry_run).decide(Wishes())
    card, without = decision.plan.devices[1], alone.plan.devices[1]
    assert (card.weights, card.kv, card.compute) == (without.weights, without.kv, without.compute)
    assert card.draft == 100 * MIB + 2 * (50 * MIB + KV_PER_BLOCK) + 50 * MIB
    assert card.total == without.total + card.draft
    assert without.draft == 0


def draft_dry_run(plan: Plan) -> tuple[DeviceBytes, ...]:
    draft = 50 * MIB if plan.draft and plan.draft.kind == "model" else 0
    return (DeviceBytes(plan.device or "CPU", "gpu", compute=100 * MIB, draft=draft),)


def test_an_index_cache_that_is_not_counted_is_said() -> None:
    sparse = ModelFile.of(dataclasses.replace(TARGET.info, index_cache=True), "sparse.gguf", "sparse")
    assert "index cache of this model's sparse attention is not counted" in plan(machine(), target=sparse).notes[0]

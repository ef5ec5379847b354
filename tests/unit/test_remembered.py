"""Tuned settings between flags and profiles: what they change in a plan, how it is told, and what no longer holds."""

import dataclasses
from pathlib import Path

import pytest

from tests.unit.test_planner import CARD, IGPU, MIB, PROFILES, TARGET, dry_run, machine
from tests.unit.test_tuned_file import ENTRY
from tokencli.app.remembered import Remembered, this_computer
from tokencli.app.world import World
from tokencli.core import Device, Machine, Plan
from tokencli.plan.choose import Wishes
from tokencli.plan.planner import Planner
from tokencli.plan.settings import Tuned

ON_CPU = Tuned("CPU", {"threads": 4, "ubatch": 128, "draft": "ngram", "draft_tokens": 8, "extra_buffers": False}, "tuned: so")


def planned(tuned: Tuned, *devices: Device, here: Machine | None = None, **wishes: object) -> Plan:
    return Planner(TARGET, here or machine(*devices), PROFILES, dry_run, tuned=tuned).plan(Wishes(**wishes))


def test_tuned_values_go_before_the_profile_and_say_so_in_one_note() -> None:
    plan = planned(ON_CPU)
    assert (plan.threads, plan.ubatch, plan.extra_buffers) == (4, 128, False)
    assert plan.draft
    assert (plan.draft.kind, plan.draft.max_tokens) == ("ngram", 8)
    assert {plan.origins[name] for name in ("threads", "ubatch", "draft", "draft_tokens")} == {"tuned"}
    assert plan.origins["context"] == "profile"
    assert plan.notes.count("tuned: so") == 1


def test_flags_go_before_tuned_values() -> None:
    plan = planned(ON_CPU, threads=2, draft="off")
    assert (plan.threads, plan.draft) == (2, None)
    assert (plan.origins["threads"], plan.origins["draft"], plan.origins["ubatch"]) == ("flag", "flag", "tuned")
    assert planned(ON_CPU, draft="auto").draft, "auto is what was measured"


def test_no_more_threads_than_other_programs_leave() -> None:
    busy = dataclasses.replace(machine(), busy_cores=6.0)
    assert planned(ON_CPU, here=busy).threads == 2
    assert planned(Tuned("CPU", {"threads": 1}), here=busy).threads == 1


def test_threads_for_prompts_are_tuned_apart_and_a_flag_is_for_both() -> None:
    tuned = Tuned("CPU", {"threads": 2, "batch_threads": 6})
    assert (planned(tuned).threads, planned(tuned).batch_threads) == (2, 6)
    assert (planned(tuned, threads=3).threads, planned(tuned, threads=3).batch_threads) == (3, None)


def test_the_device_that_was_fastest_is_taken_where_none_is_asked_for() -> None:
    assert planned(ON_CPU, IGPU).device is None, "the CPU was faster"
    assert planned(Tuned("Vulkan0", {}), IGPU, CARD).device == "Vulkan0"
    assert planned(Tuned("Vulkan0", {}), CARD).device == "CUDA0", "it is not there any more"


def test_what_was_measured_on_one_device_is_not_for_another() -> None:
    for wishes in ({"device": "Vulkan0"}, {"gpu_layers": 3}):
        plan = planned(ON_CPU, IGPU, **wishes)
        assert (plan.device, plan.ubatch) == ("Vulkan0", 512)
        assert "tuned: so" not in plan.notes
    assert planned(ON_CPU, IGPU, device="cpu").ubatch == 128


def test_a_split_is_tuned_to_less_on_the_device_never_to_more() -> None:
    small = dataclasses.replace(CARD, free_bytes=700 * MIB)
    fits = planned(Tuned("CUDA0", {}), small).gpu_layers
    assert 1 < fits < TARGET.model.offloadable_layers
    fewer = planned(Tuned("CUDA0", {"gpu_layers": fits - 1}), small)
    assert (fewer.gpu_layers, fewer.origins["gpu_layers"]) == (fits - 1, "tuned")
    assert planned(Tuned("CUDA0", {"gpu_layers": fits + 1}), small).gpu_layers == fits
    assert planned(Tuned("CUDA0", {"gpu_layers": 1}), small, gpu_layers=2).gpu_layers == 2


def test_an_entry_is_told_with_its_gain() -> None:
    tuned = Remembered(ENTRY).on([IGPU_OF_ENTRY])
    assert tuned.device == "CPU"
    assert tuned.values == ENTRY.settings
    assert tuned.note == (
        "tuned on 2026-12-01 for turn at a context of 4096: threads 1, draft ngram, draft_tokens 8, extra_buffers False, "
        "OMP_WAIT_POLICY passive, 1.50 times as fast then"
    )


def test_one_that_was_broken_off_says_that_it_is_not_confirmed() -> None:
    assert Remembered(dataclasses.replace(ENTRY, gain=None)).on([IGPU_OF_ENTRY]).note.endswith(", not confirmed")


def test_where_the_plan_was_fastest_nothing_is_said() -> None:
    nothing = dataclasses.replace(ENTRY, settings={}, environment={}, gain=None)
    assert Remembered(nothing).on([IGPU_OF_ENTRY]).note == ""


@pytest.mark.parametrize("devices", [[], [dataclasses.replace(IGPU, description="AMD Radeon 780M (RADV 26)")]])
def test_another_device_or_driver_is_one_line_and_changes_nothing(devices: list[Device]) -> None:
    tuned = Remembered(ENTRY).on(devices)
    plan = planned(tuned, *devices, gpu_layers=0)
    assert (plan.threads, plan.origins["threads"]) == (8, "machine")
    (note,) = (note for note in plan.notes if "tuned" in note)
    assert note.startswith(
        "the tuned settings of 2026-12-01 are not used: the devices were Vulkan0 AMD Radeon 780M then and are "
    )
    assert note.endswith("; tokencli tune measures anew")


IGPU_OF_ENTRY = dataclasses.replace(IGPU, description="AMD Radeon 780M")


def test_the_computer_is_its_processor_cores_and_power(tmp_path: Path) -> None:
    def here(**facts: object) -> str:
        read = dataclasses.replace(machine(), cpu="AMD Ryzen 7 7840U", **facts)
        return this_computer(World(read_machine=lambda _: read, cache=tmp_path))

    assert here() == here(on_ac=True) == "AMD Ryzen 7 7840U, 8 cores"
    assert here(on_ac=False) == "AMD Ryzen 7 7840U, 8 cores, on battery"
    assert here(cores=1).endswith(", 1 core")

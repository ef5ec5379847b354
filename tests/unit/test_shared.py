"""A device that shares the host's memory: the weights do not lie in it twice (reports A7-01, A7-15)."""

import dataclasses

import pytest

from tests.unit.test_planner import AS_IT_IS, CARD, CPU, GIB, IGPU, MIB, PROFILES, TARGET, dry_run, plan
from tokencli.core import Device, Machine, Plan, Quirk
from tokencli.plan.choose import Wishes
from tokencli.plan.planner import Planner

WEIGHTS = 1100 * MIB  # of the test's model on a device; 160 MiB of cache, 100 of input


def with_ram(available: int, device: Device = IGPU) -> Plan:
    machine = Machine(cores=8, ram_total_bytes=32 * GIB, ram_available_bytes=available, devices=(device, CPU))
    return plan(machine, **AS_IT_IS)


def enough_for(copies: int) -> int:
    """RAM that holds the plan with so many copies of its weights, with 10 % headroom on top."""
    host, device = 100 * MIB + 32000 * 4, WEIGHTS + 10 * 4096 * 4 * 256 * 2
    return int((host + device + (copies - 1) * WEIGHTS) / 0.9) + 2


def test_where_the_ram_holds_both_the_pages_stay_for_the_next_start() -> None:
    found = with_ram(enough_for(2))
    assert (found.gpu_layers, found.page_cache, found.load_mode, found.notes) == (11, True, "auto", ())


def test_where_it_does_not_they_are_given_back_and_that_is_said() -> None:
    found = with_ram(enough_for(2) - 4)
    assert (found.gpu_layers, found.page_cache) == (11, False)
    (note,) = found.notes
    assert note == ("Vulkan0 shares the RAM, which does not hold 1.1 GiB of weights twice: the file's pages are given back")


def test_a_card_with_memory_of_its_own_needs_no_such_thing() -> None:
    found = with_ram(1 * GIB, CARD)
    assert (found.gpu_layers, found.page_cache, found.load_mode) == (11, True, "auto")


def test_what_stays_on_the_host_is_mapped_as_its_budget_counts_it() -> None:
    """llama.cpp maps nothing for such a device by itself: blocks on the host would be memory that the system cannot take back."""
    small = dataclasses.replace(IGPU, free_bytes=700 * MIB)
    found = with_ram(16 * GIB, small)
    assert 0 < found.gpu_layers < 11
    assert found.load_mode == "mmap"


@pytest.mark.parametrize("free", [700 * MIB, 12 * GIB], ids=["in part", "whole"])
def test_a_quirk_decides_in_any_case(free: int) -> None:
    quirk = Quirk("780M", "loads without mmap have failed", "a report", load_mode="mmap")
    profiles = tuple(dataclasses.replace(each, quirks=(quirk,)) for each in PROFILES)
    here = Machine(8, 32 * GIB, enough_for(1), (dataclasses.replace(IGPU, free_bytes=free), CPU))
    found = Planner(TARGET, here, profiles, dry_run).plan(Wishes(**AS_IT_IS))
    assert found.gpu_layers > 0
    assert found.load_mode == "mmap"
    assert not found.page_cache or free < GIB

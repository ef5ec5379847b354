"""CPU cores that may be used, also inside a container (report A7-08)."""

import os
from pathlib import Path

import pytest

from tokencli.world.machine import cgroup_available, cgroup_cores, read_machine, usable_cores


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("max 100000", None),
        ("200000 100000", 2),
        ("800000 100000", 8),
        ("180000 100000", 2),
        ("50000 100000", 1),
        ("1000 100000", 1),
        (None, None),
        ("", None),
        ("nonsense", None),
        ("200000", None),
        ("200000 0", None),
    ],
)
def test_a_quota_is_whole_cores_and_at_least_one(cpu_max: str | None, cores: int | None) -> None:
    assert cgroup_cores(cpu_max) == cores


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path


def test_the_quota_bounds_what_the_machine_has(root: Path) -> None:
    (root / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    assert usable_cores(root) == 1


@pytest.mark.parametrize("cpu_max", [None, "max 100000\n", "6400000 100000\n", "\n"])
def test_without_a_narrow_quota_the_affinity_mask_is_the_bound(root: Path, cpu_max: str | None) -> None:
    if cpu_max:
        (root / "sys/fs/cgroup/cpu.max").write_text(cpu_max)
    assert 1 <= usable_cores(root) <= len(os.sched_getaffinity(0))
    assert usable_cores(root) == usable_cores(root / "no such folder")


STAT = "anon 1000\nfile 7000\ninactive_file 4000\nactive_file 2500\nslab 10\n"


@pytest.mark.parametrize(
    ("memory_max", "current", "stat", "available"),
    [
        ("max", "5000", STAT, None),
        (None, "5000", STAT, None),
        ("10000", None, STAT, None),
        ("10000", "8000", STAT, 10000 - (8000 - 6500)),
        ("10000", "8000", None, 2000),
        ("10000", "12000", "", 0),
        ("10000", "many", STAT, None),
    ],
)
def test_file_cache_counts_as_free(memory_max: str | None, current: str | None, stat: str | None, available: int | None) -> None:
    """Report A1-14: memory.max - memory.current counts reclaimable cache as used."""
    assert cgroup_available(memory_max, current, stat) == available


def test_a_containers_limit_bounds_the_machines_free_memory(root: Path) -> None:
    for name, text in (("memory.max", "1000000"), ("memory.current", "400000"), ("memory.stat", "inactive_file 100000")):
        (root / "sys/fs/cgroup" / name).write_text(text + "\n")
    machine = read_machine([], root)
    assert machine.ram_available_bytes == 700000
    assert machine.ram_total_bytes > 1 << 28

"""CPU cores that may be used, also inside a container (report A7-08)."""

import os
from pathlib import Path

import pytest

from tokencli.world.machine import cgroup_cores, usable_cores


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

"""The readers of the machine: each on files that are there, damaged or missing, below a root of the test's own."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokencli.core import Card, Machine
from tokencli.world.machine import measured_bandwidth, read_machine, remembered_bandwidth
from tokencli.world.machine.bandwidth import copy_bandwidth
from tokencli.world.machine.cpu import quota_of, read_cpu
from tokencli.world.machine.graphics import Graphics, nvidia_version
from tokencli.world.machine.libraries import named_backends
from tokencli.world.machine.memory import read_memory
from tokencli.world.machine.nvml import pci_id, read_nvml
from tokencli.world.machine.surroundings import on_ac, surroundings
from tokencli.world.machine.tree import Tree, cpu_list


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


@pytest.mark.parametrize(
    ("cpu_max", "quota"),
    [
        ("max 100000", None),
        ("200000 100000", 2),
        ("180000 100000", 1.8),
        ("50000 100000", 0.5),
        ("-1 100000", None),
        (None, None),
        ("", None),
        ("nonsense", None),
        ("200000", None),
        ("200000 0", None),
        ("None None", None),
    ],
)
def test_a_quota_is_cpus(cpu_max: str | None, quota: float | None) -> None:
    assert quota_of(cpu_max) == quota


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1), ("6400000 100000", None)])
def test_the_quota_bounds_what_the_machine_has(tmp_path: Path, quota: str, cores: int | None) -> None:
    put(tmp_path, "sys/fs/cgroup/cpu.max", quota)
    assert read_cpu(Tree(tmp_path)).cores == (cores or read_cpu(Tree(tmp_path / "nothing")).cores)


def test_the_narrowest_of_the_groups_above_counts(tmp_path: Path) -> None:
    """A service's own group has no limit, the slice above it has."""
    put(tmp_path, "proc/self/cgroup", "0::/user.slice/app.service")
    put(tmp_path, "sys/fs/cgroup/user.slice/app.service/cpu.max", "max 100000")
    put(tmp_path, "sys/fs/cgroup/user.slice/cpu.max", "100000 100000")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "400000 100000")
    assert read_cpu(Tree(tmp_path)).quota == 1


def test_without_files_the_affinity_mask_is_the_bound(tmp_path: Path) -> None:
    """Reports A7-08, A7-10."""
    cpu = read_cpu(Tree(tmp_path))
    assert 1 <= cpu.cores <= cpu.logical == len(os.sched_getaffinity(0))
    assert (cpu.performance, cpu.efficiency, cpu.name) == (None, None, None)


def test_two_threads_of_one_core_are_one_core(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, f"sys/devices/system/cpu/cpu{number}/topology/core_id", str(number // 2))
        put(tmp_path, f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id", "0")
    put(tmp_path, "proc/self/status", "Cpus_allowed_list:\t0-1")
    assert read_cpu(Tree(tmp_path)).cores == 1
    put(tmp_path, "proc/self/status", "Cpus_allowed_list:\t1-2")
    assert read_cpu(Tree(tmp_path)).cores == 2


def test_arm_tells_its_fast_cores_by_capacity(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status", "Cpus_allowed_list:\t0-5")
    for number in range(6):
        put(tmp_path, f"sys/devices/system/cpu/cpu{number}/topology/core_id", str(number))
        put(tmp_path, f"sys/devices/system/cpu/cpu{number}/cpu_capacity", "1024" if number > 3 else "400")
    cpu = read_cpu(Tree(tmp_path))
    assert (cpu.cores, cpu.performance, cpu.efficiency) == (6, 2, 4)


GIB = 1 << 30
STAT = f"anon 1000\nfile 7000\ninactive_file {GIB}\nactive_file {2 * GIB}\nslab 10"


@pytest.mark.parametrize(
    ("limit", "current", "stat", "available"),
    [
        (str(8 * GIB), str(6 * GIB), STAT, 5 * GIB),
        (str(8 * GIB), str(6 * GIB), "", 2 * GIB),
        (str(8 * GIB), str(9 * GIB), "", 0),
        (str(8 * GIB), str(GIB), STAT, 8 * GIB),
        ("max", str(6 * GIB), STAT, 60 * GIB),
        (str(8 * GIB), "many", STAT, 60 * GIB),
        ("nonsense", str(6 * GIB), STAT, 60 * GIB),
    ],
)
def test_file_cache_counts_as_free(tmp_path: Path, limit: str, current: str, stat: str, available: int) -> None:
    """Report A1-14: memory.max - memory.current counts reclaimable cache as used."""
    put(tmp_path, "proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB")
    for name, text in (("memory.max", limit), ("memory.current", current), ("memory.stat", stat)):
        put(tmp_path, f"sys/fs/cgroup/{name}", text)
    memory = read_memory(Tree(tmp_path))
    assert memory.available == available
    assert (memory.limit, memory.total) == ((8 * GIB, 8 * GIB) if available < 60 * GIB else (None, 64 * GIB))


def test_a_limit_of_version_1_that_is_none(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB")
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    put(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000")
    assert read_memory(Tree(tmp_path)).limit is None


def test_this_computer_is_read_without_a_failure() -> None:
    machine = read_machine([])
    assert machine.failed_probes == ()
    assert machine.ram_total_bytes >= machine.ram_available_bytes > 1 << 28
    assert machine.threads >= 1


def test_what_is_there_and_cannot_be_read_is_told(tmp_path: Path) -> None:
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/class", "0x030000")
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x1002")
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/mem_info_vram_total", "much")
    (tmp_path / "proc/version").mkdir(parents=True)
    failed = read_machine([], tmp_path).failed_probes
    assert "/sys/bus/pci/devices/0000:01:00.0/mem_info_vram_total: 'much' is no number" in failed
    assert "/proc/version: Is a directory" in failed


def test_a_card_of_another_kind_or_maker_is_none(tmp_path: Path) -> None:
    for address, kind, vendor in (("0000:00:01.0", "0x020000", "0x10de"), ("0000:00:02.0", "0x030000", "0x1af4")):
        put(tmp_path, f"sys/bus/pci/devices/{address}/class", kind)
        put(tmp_path, f"sys/bus/pci/devices/{address}/vendor", vendor)
    assert read_machine([], tmp_path).cards == ()


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), (None, set()), ("5", {5}), ("x,2", {2}), ("0-1, 4", {0, 1, 4})]
)
def test_the_kernels_lists(text: str | None, numbers: set[int]) -> None:
    assert cpu_list(text) == numbers


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 15:37:48 UTC 2023", "535.154.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("", None),
        (None, None),
    ],
)
def test_nvidias_driver_tells_its_version(text: str | None, version: str | None) -> None:
    assert nvidia_version(text) == version


def test_backends_by_the_names_of_libraries() -> None:
    names = ["libggml-base.so", "libggml-cpu-haswell.so", "libggml-cpu.so.0", "libggml-vulkan.so.0.25.3", "ggml-cuda.dll"]
    assert named_backends(names) == ("cpu", "cuda", "vulkan")
    assert named_backends([]) is None


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, None),
        ({"AC": {"type": "Mains", "online": "1"}}, True),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery"}}, False),
        ({"usb0": {"type": "USB", "online": "1"}, "BAT0": {"type": "Battery"}}, True),
        ({"BAT0": {"type": "Battery"}}, False),
        ({"mouse": {"type": "Battery", "scope": "Device"}}, None),
    ],
)
def test_mains_or_battery(tmp_path: Path, supplies: dict[str, dict[str, str]], expected: bool | None) -> None:
    """Report A1-23."""
    for name, files in supplies.items():
        for file, text in files.items():
            put(tmp_path, f"sys/class/power_supply/{name}/{file}", text)
    assert on_ac(Tree(tmp_path)) is expected


@pytest.mark.parametrize(
    ("files", "inside"),
    [
        ({}, ()),
        ({"proc/version": "Linux version 5.15-microsoft-standard-WSL2"}, ("wsl",)),
        ({"proc/cpuinfo": "flags : fpu hypervisor sse"}, ("vm",)),
        ({"proc/cpuinfo": "flags : fpu hypervisor", ".dockerenv": ""}, ("vm", "docker")),
        ({"run/.containerenv": "x"}, ("podman",)),
        ({"run/systemd/container": "lxc", "proc/self/mounts": "lxcfs /proc/meminfo fuse.lxcfs"}, ("lxc",)),
    ],
)
def test_what_the_system_runs_inside_of(tmp_path: Path, files: dict[str, str], inside: tuple[str, ...]) -> None:
    for path, text in files.items():
        put(tmp_path, path, text)
    assert surroundings(Tree(tmp_path)) == inside


class FakeNvml:
    """One card of 6 GiB, or a driver that fails."""

    def __init__(self, failure: str | None = None) -> None:
        self.failure = failure
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        self.calls.append("init")
        if self.failure:
            raise RuntimeError(self.failure)

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, _handle: Any) -> Any:
        return SimpleNamespace(busId=b"00000000:01:00.0")

    def nvmlDeviceGetMemoryInfo(self, _handle: Any) -> Any:
        return SimpleNamespace(total=6 * GIB, free=4 * GIB)


def nvidia(state: str = "active", driver: str | None = "550.1") -> Graphics:
    return Graphics((Card("0000:01:00.0", "nvidia", "nvidia", state),), {}, driver)


def test_nvml_tells_a_cards_memory_by_its_pci_id() -> None:
    library = FakeNvml()
    told = read_nvml(nvidia(), library, [])
    assert told["0000:01:00.0"].free == 4 * GIB
    assert library.calls == ["init", "shutdown"]
    assert pci_id("00000001:C1:00.0") == "0001:c1:00.0"


@pytest.mark.parametrize("graphics", [nvidia("suspended"), nvidia(driver=None)])
def test_nvml_is_not_asked_while_a_card_sleeps_or_without_a_driver(graphics: Graphics) -> None:
    """Report A1-34: the question itself wakes the card."""
    library = FakeNvml()
    assert read_nvml(graphics, library, []) == {}
    assert library.calls == []


def test_a_failing_nvml_is_a_failed_probe() -> None:
    failed: list[str] = []
    assert read_nvml(nvidia(), FakeNvml("Driver/library version mismatch"), failed) == {}
    assert failed == ["NVML: Driver/library version mismatch"]


def test_the_bandwidth_is_measured_and_kept(tmp_path: Path) -> None:
    here = Machine(1, 64 * GIB, 32 * GIB, cpu="a CPU")
    assert remembered_bandwidth(here, tmp_path) is None
    found = measured_bandwidth(here, tmp_path, seconds=0.01)
    assert found
    assert found > 100e6
    assert remembered_bandwidth(here, tmp_path) == found
    assert remembered_bandwidth(Machine(1, 64 * GIB, 32 * GIB, cpu="another"), tmp_path) is None
    assert [each.name for each in tmp_path.iterdir()] == ["bandwidth.json"]


def test_a_measurement_on_a_busy_computer_does_not_stay(tmp_path: Path) -> None:
    """What was measured beside other work was kept for good: models then read at 1.23 times "the bandwidth"."""
    here = Machine(1, 64 * GIB, 32 * GIB, cpu="a CPU")
    told = [measured_bandwidth(here, tmp_path, 0, lambda _threads, _seconds, each=each: each) for each in (12, 36, 30)]
    assert told == [12, 36, 36]
    assert remembered_bandwidth(here, tmp_path) == 36


def test_no_room_no_measurement(tmp_path: Path) -> None:
    assert measured_bandwidth(Machine(1, GIB, 1 << 20), tmp_path) is None
    assert copy_bandwidth(2, 0.01, 1 << 20) > 1e6


@pytest.mark.parametrize("broken", ["", "[1]", "{", '{"a CPU 1 threads 64 GiB": "fast"}'])
def test_a_broken_memory_of_the_bandwidth_is_none(tmp_path: Path, broken: str) -> None:
    (tmp_path / "bandwidth.json").write_text(broken)
    assert remembered_bandwidth(Machine(1, 64 * GIB, 32 * GIB, cpu="a CPU"), tmp_path) is None

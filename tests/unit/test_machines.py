"""Computers that are not here: from what kernel and llama.cpp show to device, profile, budget and findings (machines.toml)."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tokencli.core import Device, Machine
from tokencli.plan.choose import Wishes, choose_device, choose_profile
from tokencli.plan.findings import findings
from tokencli.plan.sizes import Budgets
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import gpus_asleep, parse_snapshot, read_machine
from tokencli.world.settings import read_profiles

GIB = 1 << 30
MACHINES = tomllib.loads(Path(__file__).with_name("machines.toml").read_text("utf-8"))["machine"]
PROFILES = read_profiles(data_folder())
QUIRKS = [quirk for profile in PROFILES for quirk in profile.quirks]
VENDORS = {"amd": "0x1002", "nvidia": "0x10de", "intel": "0x8086"}


def size(gib: float) -> int:
    return round(gib * GIB)


class Root:
    """Builds the files of a computer below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, text: object) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(f"{text}\n")

    def cores(self, cores: str, allowed: str | None) -> None:
        """ "8x2": cores x threads; "4P2+8E": fast ones with so many threads, and slow ones."""
        fast, _, slow = cores.partition("+")
        count, _, threads = fast.replace("P", "x").partition("x")
        topology = [core for core in range(int(count)) for _ in range(int(threads))]
        first_slow = len(topology)
        topology += [1000 + core for core in range(int(slow.rstrip("E") or 0))]
        for cpu, core in enumerate(topology):
            folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
            siblings = ",".join(str(each) for each, other in enumerate(topology) if other == core)
            for name, text in (("core_id", core), ("physical_package_id", 0), ("thread_siblings_list", siblings)):
                self.write(f"{folder}/{name}", text)
        self.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{allowed or f'0-{len(topology) - 1}'}")
        if slow:
            self.write("sys/devices/cpu_core/cpus", f"0-{first_slow - 1}")
            self.write("sys/devices/cpu_atom/cpus", f"{first_slow}-{len(topology) - 1}")

    def memory(self, total: float, available: float) -> None:
        self.write("proc/meminfo", f"MemTotal: {size(total) >> 10} kB\nMemFree: 1 kB\nMemAvailable: {size(available) >> 10} kB")

    def cgroup2(self, limit: float, current: float, cache: float) -> None:
        self.write("proc/self/cgroup", "0::/inner")
        folder = "sys/fs/cgroup/inner"
        self.write(f"{folder}/memory.max", size(limit))
        self.write(f"{folder}/memory.current", size(current))
        self.write(f"{folder}/memory.stat", f"anon 5\nfile 9\ninactive_file {size(cache / 2)}\nactive_file {size(cache / 2)}")

    def cgroup1(self, limit: float, usage: float, cache: float, quota: float) -> None:
        self.write("proc/self/cgroup", "5:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123")  # a path that only the host has
        self.write("sys/fs/cgroup/memory/memory.limit_in_bytes", size(limit))
        self.write("sys/fs/cgroup/memory/memory.usage_in_bytes", size(usage))
        self.write("sys/fs/cgroup/memory/memory.stat", f"inactive_file 1\ntotal_inactive_file {size(cache)}\ntotal_active_file 0")
        self.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", round(quota * 100000))
        self.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", 100000)

    def card(self, card: dict[str, Any]) -> None:
        folder = f"sys/bus/pci/devices/{card['pci']}"
        self.write(f"{folder}/class", "0x030000")
        self.write(f"{folder}/vendor", VENDORS[card["vendor"]])
        self.write(f"{folder}/power/runtime_status", card.get("state", "active"))
        if "driver" in card:
            (self.folder / folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{card['driver']}")
        memory = {"vram_total": "carve", "vram_used": "used", "gtt_total": "gtt"}
        for file, key in memory.items():
            if key in card:
                self.write(f"{folder}/mem_info_{file}", size(card[key]))
        if "level" in card:
            self.write(f"{folder}/power_dpm_force_performance_level", card["level"])

    def supply(self, name: str, words: str) -> None:
        kind, *rest = words.split()
        self.write(f"sys/class/power_supply/{name}/type", kind)
        for word in rest:
            self.write(f"sys/class/power_supply/{name}/{'scope' if word == 'Device' else 'online'}", word)


def listed(device: dict[str, Any]) -> Device:
    """The device as llama.cpp lists it."""
    return Device(
        device["id"], device["kind"], device["name"], size(device["total"]), size(device["free"]), pci_id=device.get("pci")
    )


def read(wanted: dict[str, Any], folder: Path) -> Machine:
    root = Root(folder)
    root.cores(wanted["cores"], wanted.get("allowed"))
    root.memory(*wanted["ram"])
    if "cgroup2" in wanted:
        root.cgroup2(**wanted["cgroup2"])
    if "cgroup1" in wanted:
        root.cgroup1(**wanted["cgroup1"])
    for card in wanted.get("cards", ()):
        root.card(card)
    for name, words in wanted.get("supplies", {}).items():
        root.supply(name, words)
    for path, text in wanted.get("files", {}).items():
        root.write(path, text)
    if "nvidia" in wanted:
        text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {wanted['nvidia']}  Wed Jan 1 00:00:00 UTC 2025\nGCC version:"
        root.write("proc/driver/nvidia/version", text)
    cpu = Device("CPU", "cpu", "a CPU", size(wanted["ram"][0]), size(wanted["ram"][0]))
    machine = read_machine([*map(listed, wanted.get("devices", ())), cpu], folder)
    nodes = wanted.get("nodes", {"renderD128": True} if wanted.get("cards") else {})
    return dataclasses.replace(machine, backends=tuple(wanted.get("backends", ("cpu", "vulkan"))), render_nodes=nodes)


def test_there_are_enough_of_them() -> None:
    assert len(MACHINES) >= 25
    assert len({each["name"] for each in MACHINES}) == len(MACHINES)


@pytest.mark.parametrize("wanted", MACHINES, ids=lambda each: each["name"])
def test_a_computer_is_understood(wanted: dict[str, Any], tmp_path: Path) -> None:
    machine = read(wanted, tmp_path)
    device = choose_device(machine, Wishes(), QUIRKS)
    assert (device.id if device else None) == wanted.get("device")
    profile = choose_profile(PROFILES, device, None)
    assert profile.name == wanted["profile"]
    assert machine.threads == wanted.get("threads", machine.threads)
    budgets = Budgets.of(machine, device, profile)
    assert (budgets.device if device else budgets.host) / GIB == pytest.approx(wanted["budget"], abs=0.001)
    assert budgets.host / GIB == pytest.approx(wanted["pool"], abs=0.001)
    told = [f"{each.what}; {each.hint}" for each in findings(machine, QUIRKS)]
    for words in wanted.get("says", ()):
        assert any(words in each for each in told), told
    for words in wanted.get("silent", ()):
        assert not any(words in each for each in told), told
    assert gpus_asleep(tmp_path) == wanted.get("asleep", False)
    assert machine.failed_probes == ()


@pytest.mark.parametrize("wanted", MACHINES, ids=lambda each: each["name"])
def test_a_snapshot_comes_back_from_its_json(wanted: dict[str, Any], tmp_path: Path) -> None:
    """What `doctor --json` prints as `machine` is what `--machine` reads."""
    machine = read(wanted, tmp_path)
    assert parse_snapshot(json.dumps(dataclasses.asdict(machine))) == machine


def test_the_shared_memory_is_booked_once() -> None:
    """A plan on a 780M may take its budget on the GPU or on the host, and both together no more than the pool."""
    from tokencli.core import DeviceBytes

    budgets = Budgets(host=10 * GIB, host_total=12 * GIB, device=8 * GIB, shared=True)
    gpu, host = DeviceBytes("Vulkan0", "integrated", weights=8 * GIB), DeviceBytes("CPU", "cpu", kv=2 * GIB)
    assert budgets.missing([gpu, host]) == 0
    assert budgets.missing([gpu, dataclasses.replace(host, kv=3 * GIB)]) == GIB

"""CPU cores that may be used: topology, fast and slow cores, affinity and the cgroup's quota."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from tokencli.world.machine import groups
from tokencli.world.machine.tree import Tree, cpu_list

_CPUS = "sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class Cpu:
    """`cores` are physical and may be used; `performance` and `efficiency` are parts of them, None where all are alike."""

    name: str | None
    cores: int
    logical: int
    performance: int | None
    efficiency: int | None
    threads_per_core: int | None
    quota: float | None


def read_cpu(tree: Tree) -> Cpu:
    """What the affinity mask and the quota leave of the cores; psutil counts where there is no /sys (reports A7-08, A7-10)."""
    allowed = allowed_cpus(tree)
    cores = _cores(tree, allowed)
    quota = narrowest_quota(tree)
    whole = max(1, round(quota)) if quota else None
    count = len(set(cores.values())) if cores else _counted(allowed)
    usable = max(1, min(count, whole or count))
    fast = _fast(tree, set(cores))
    fast_cores = len({cores[cpu] for cpu in fast}) if fast else None
    performance = min(fast_cores, usable) if fast_cores else None
    return Cpu(
        name=_name(tree),
        cores=usable,
        logical=len(allowed),
        performance=performance,
        efficiency=usable - performance if performance else None,
        threads_per_core=_threads_per_core(tree, cores),
        quota=quota,
    )


def allowed_cpus(tree: Tree) -> frozenset[int]:
    """The CPUs of this process's affinity mask."""
    for line in (tree.text("proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return cpu_list(value)
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def narrowest_quota(tree: Tree) -> float | None:
    """CPUs that the control groups grant, None without a limit."""
    quotas = [_quota(tree, folder) for folder in groups.folders(tree, "cpu")]
    return min((each for each in quotas if each is not None), default=None)


def quota_of(text: str | None) -> float | None:
    """CPUs of a cgroup v2 `cpu.max` text ("200000 100000" or "max 100000"); None without a limit."""
    quota, _, period = (text or "").partition(" ")
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _quota(tree: Tree, folder: str) -> float | None:
    if text := tree.text(f"{folder}/cpu.max"):
        return quota_of(text)
    quota, period = (tree.text(f"{folder}/cpu.cfs_{which}_us") for which in ("quota", "period"))
    return quota_of(f"{quota} {period}")  # v1; a quota of -1 is none


def _cores(tree: Tree, allowed: Iterable[int]) -> dict[int, tuple[int, int]]:
    """The physical core of each allowed CPU, as (package, core)."""
    found = {}
    for cpu in allowed:
        core = tree.number(f"{_CPUS}/cpu{cpu}/topology/core_id")
        package = tree.number(f"{_CPUS}/cpu{cpu}/topology/physical_package_id")
        if core is not None:
            found[cpu] = (package or 0, core)
    return found


def _counted(allowed: frozenset[int]) -> int:
    import psutil

    return min(psutil.cpu_count(logical=False) or len(allowed), len(allowed))


def _fast(tree: Tree, cpus: set[int]) -> set[int]:
    """The CPUs of fast cores where some of `cpus` are slower, else none: Intel lists both kinds, Arm a capacity each."""
    slow = cpu_list(tree.text("sys/devices/cpu_atom/cpus"))
    if not slow:
        capacity = {cpu: tree.number(f"{_CPUS}/cpu{cpu}/cpu_capacity") or 0 for cpu in cpus}
        slow = frozenset(cpu for cpu in cpus if capacity[cpu] < max(capacity.values()))
    return cpus - slow if cpus & slow else set()


def _threads_per_core(tree: Tree, cores: dict[int, tuple[int, int]]) -> int | None:
    """Of the core with the most: efficiency cores have one."""
    siblings = [len(cpu_list(tree.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list"))) for cpu in cores]
    return max(siblings, default=0) or None


def _name(tree: Tree) -> str | None:
    lines = (tree.text("proc/cpuinfo") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)

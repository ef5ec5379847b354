"""What this computer has: CPU cores that may be used. Readers take a root folder, so tests can show them another machine."""

import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Physical cores this process may use: those of the machine, bounded by the affinity mask and the cgroup's CPU quota."""
    import psutil

    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    quota = cgroup_cores(_read(root / "sys/fs/cgroup/cpu.max"))
    return max(1, min(physical, allowed, quota or physical))


def cgroup_cores(cpu_max: str | None) -> int | None:
    """Whole cores of a cgroup v2 `cpu.max` text ("200000 100000" or "max 100000"); None without a limit."""
    if not cpu_max or cpu_max.startswith("max"):
        return None
    quota, _, period = cpu_max.partition(" ")
    try:
        return max(1, round(int(quota) / int(period)))
    except (ValueError, ZeroDivisionError):
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

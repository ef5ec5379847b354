"""What this computer has: CPU cores and memory that may be used. Readers take a root folder, so tests can show them another
machine; the devices come from the engine, as the linked llama.cpp lists them.
"""

import json
import math
import os
from pathlib import Path

from tokencli.core import Device, Machine
from tokencli.errors import UsageError


def read_machine(devices: list[Device], root: Path = Path("/")) -> Machine:
    """This computer, with the devices that the engine listed."""
    import psutil

    memory = psutil.virtual_memory()
    group = cgroup_available(
        _read(root / "sys/fs/cgroup/memory.max"),
        _read(root / "sys/fs/cgroup/memory.current"),
        _read(root / "sys/fs/cgroup/memory.stat"),
    )
    available = memory.available if group is None else min(memory.available, group)
    return Machine(
        cores=usable_cores(root),
        ram_total_bytes=memory.total,
        ram_available_bytes=available,
        devices=tuple(devices),
    )


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


def cgroup_available(memory_max: str | None, current: str | None, stat: str | None) -> int | None:
    """Bytes a cgroup v2 may still take; None without a limit. File cache counts as free: it is given back (report A1-14)."""
    if not memory_max or memory_max == "max" or current is None:
        return None
    counts = dict(line.split() for line in (stat or "").splitlines() if line.count(" ") == 1)
    try:
        reclaimable = int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))
        return max(0, int(memory_max) - (int(current) - reclaimable))
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def read_snapshot(name: str, folder: Path) -> Machine:
    """A machine by the name of a shipped snapshot (profiles/machines/NAME.json), or from a file. Raises UsageError."""
    file = folder / "profiles" / "machines" / f"{name}.json"
    if name.endswith(".json"):
        file = Path(name)
    elif not file.is_file():
        known = ", ".join(sorted(each.stem for each in file.parent.glob("*.json")))
        raise UsageError(f"there is no machine {name}", f"known machines: {known}; or give a .json file")
    try:
        return parse_snapshot(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"the machine {file} cannot be read: {error.strerror}", "check the path") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} describes no machine: {error}", "compare it with the files in profiles/machines/") from None


def parse_snapshot(text: str) -> Machine:
    """A Machine from JSON whose keys are Machine's fields. Raises ValueError, TypeError, KeyError."""
    values = json.loads(text)
    devices = tuple(Device(**device) for device in values.pop("devices"))
    machine = Machine(devices=devices, **values)
    sizes = [machine.ram_total_bytes, machine.ram_available_bytes, machine.cores]
    sizes += [size for device in devices for size in (device.total_bytes, device.free_bytes)]
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or machine.cores < 1:
        raise ValueError("sizes and cores must be whole numbers")
    rates = [rate for device in devices for rate in (device.bandwidth_bytes_per_second, device.operations_per_second)]
    if not all(rate is None or (isinstance(rate, int | float) and 0 < rate < math.inf) for rate in rates):
        raise ValueError("bandwidths and operations per second must be numbers above 0, or left out")
    if any(device.kind not in ("cpu", "gpu", "integrated", "accelerator") for device in devices):
        raise ValueError("a device's kind must be cpu, gpu, integrated or accelerator")
    return machine

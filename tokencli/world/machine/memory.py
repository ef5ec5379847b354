"""RAM that may be used: what the system has free, within the control group's limit (v1 and v2)."""

from dataclasses import dataclass

from tokencli.world.machine import groups
from tokencli.world.machine.tree import Tree

_NO_LIMIT = 1 << 60  # v1 says "none" by a number near 2^63


@dataclass(frozen=True, slots=True)
class Memory:
    total: int
    available: int
    limit: int | None


def read_memory(tree: Tree) -> Memory:
    """Bytes. The narrowest group counts; memory that the GPU takes as GTT is not charged to it (report A1-17)."""
    total, available = _system(tree)
    limits = [each for folder in groups.folders(tree, "memory") if (each := group_memory(tree, folder))]
    limit = min((most for most, _ in limits if most < total), default=None)
    return Memory(total=limit or total, available=min([available, *(left for _, left in limits)]), limit=limit)


def group_memory(tree: Tree, folder: str) -> tuple[int, int] | None:
    """(limit, what may still be taken) of one group, None without a limit. File cache is given back (report A1-14)."""
    v2 = tree.text(f"{folder}/memory.max")
    most = v2 or tree.text(f"{folder}/memory.limit_in_bytes")
    used = tree.text(f"{folder}/memory.current" if v2 else f"{folder}/memory.usage_in_bytes")
    if not most or not most.isdecimal() or not used or not used.isdecimal() or int(most) >= _NO_LIMIT:
        return None
    counts = _counts(tree.text(f"{folder}/memory.stat"))
    prefix = "" if v2 else "total_"
    cache = counts.get(f"{prefix}inactive_file", 0) + counts.get(f"{prefix}active_file", 0)
    return int(most), max(0, int(most) - max(0, int(used) - cache))


def _counts(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _system(tree: Tree) -> tuple[int, int]:
    """Total and available, from /proc/meminfo where there is one."""
    kib = {}
    for line in (tree.text("proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdecimal():
            kib[name] = int(number[0])
    if "MemTotal" in kib and "MemAvailable" in kib:
        return kib["MemTotal"] << 10, kib["MemAvailable"] << 10
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available

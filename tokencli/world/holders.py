"""What other programs hold of the RAM, by their names alone: no user, no command line, no process number."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from tokencli.core import Holder


def read_holders() -> tuple[Holder, ...]:
    """All programs but this one and what it started, the largest first; empty where the system does not tell."""
    import psutil

    try:
        return summed(_seen(psutil.process_iter(["pid", "ppid", "name", "memory_info"])))
    except (OSError, psutil.Error):
        return ()


def summed(found: Iterable[tuple[str, int]]) -> tuple[Holder, ...]:
    """Programs of one name together: a browser has a process per page."""
    sizes: dict[str, int] = {}
    for name, size in found:
        shown = "".join(each for each in name if each.isprintable())
        sizes[shown] = sizes.get(shown, 0) + size
    return tuple(Holder(name, sizes[name]) for name in sorted(sizes, key=lambda each: -sizes[each]) if name)


def _seen(processes: Iterable[Any]) -> Iterator[tuple[str, int]]:
    """What is a process's own: resident pages without those that it has in common with others or with a file."""
    for process in processes:
        seen = process.info
        memory = seen["memory_info"]
        if memory and seen["name"] and os.getpid() not in (seen["pid"], seen["ppid"]):
            yield seen["name"], max(memory.rss - getattr(memory, "shared", 0), 0)

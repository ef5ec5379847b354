"""What this computer has, and what it would have to be. Readers take a root folder, so tests can show them another machine;
the devices come from the engine, as the linked llama.cpp lists them. Decides nothing.
"""

from pathlib import Path

from tokencli.core import Device, Machine
from tokencli.world.machine.bandwidth import measured_bandwidth, remembered_bandwidth
from tokencli.world.machine.cpu import read_cpu
from tokencli.world.machine.graphics import read_graphics
from tokencli.world.machine.joined import joined
from tokencli.world.machine.libraries import backends
from tokencli.world.machine.memory import read_memory
from tokencli.world.machine.nvml import Nvml, read_nvml
from tokencli.world.machine.snapshots import parse_snapshot, read_snapshot
from tokencli.world.machine.surroundings import on_ac, surroundings
from tokencli.world.machine.tree import Tree

__all__ = [
    "backends",
    "gpus_asleep",
    "measured_bandwidth",
    "parse_snapshot",
    "read_machine",
    "read_snapshot",
    "remembered_bandwidth",
]


def read_machine(devices: list[Device], root: Path = Path("/"), nvml: Nvml | None = None) -> Machine:
    """This computer, with the devices that the engine listed, each joined with what the kernel says of its card."""
    tree = Tree(root)
    cpu, memory, graphics = read_cpu(tree), read_memory(tree), read_graphics(tree)
    told = read_nvml(graphics, nvml, tree.failed)
    return Machine(
        cores=cpu.cores,
        ram_total_bytes=memory.total,
        ram_available_bytes=memory.available,
        devices=joined(devices, graphics.cards, told, graphics.nvidia_driver),
        cpu=cpu.name,
        logical_cpus=cpu.logical,
        performance_cores=cpu.performance,
        efficiency_cores=cpu.efficiency,
        threads_per_core=cpu.threads_per_core,
        cpu_quota=cpu.quota,
        ram_limit_bytes=memory.limit,
        cards=graphics.cards,
        render_nodes=graphics.render_nodes,
        backends=backends(),
        inside=surroundings(tree),
        on_ac=on_ac(tree),
        nvidia_driver=graphics.nvidia_driver,
        failed_probes=tuple(tree.failed),
    )


def gpus_asleep(root: Path = Path("/")) -> bool:
    """Whether a graphics processor sleeps that any look at the GPUs would wake (report A1-34)."""
    return any(card.power_state == "suspended" for card in read_graphics(Tree(root)).cards)

"""Graphics processors as the kernel shows them, also those that llama.cpp does not list. Wakes none that sleeps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokencli.core import Card
from tokencli.world.machine.tree import Tree

_DEVICES = "sys/bus/pci/devices"
_VENDORS = {0x1002: "amd", 0x10DE: "nvidia", 0x8086: "intel"}
_DISPLAY = 0x03  # the PCI class of display controllers
_DRIVER_VERSION = re.compile(r"(?:Kernel Module|for x86_64|for aarch64)\s+(\d+\.[\d.]+)")


@dataclass(frozen=True, slots=True)
class Graphics:
    """`nvidia_driver`: the version that the running kernel module tells; None where there is none."""

    cards: tuple[Card, ...]
    render_nodes: Mapping[str, bool]
    nvidia_driver: str | None


def read_graphics(tree: Tree) -> Graphics:
    addresses = [name for name in tree.names(_DEVICES) if (tree.number(f"{_DEVICES}/{name}/class") or 0) >> 16 == _DISPLAY]
    real = [address for address in addresses if _vendor(tree, address) in _VENDORS]
    nodes = [name for name in tree.names("dev/dri") if name.startswith("renderD")]
    return Graphics(
        cards=tuple(_card(tree, address) for address in real),
        render_nodes={name: tree.usable(f"dev/dri/{name}") for name in nodes},
        nvidia_driver=nvidia_version(tree.text("proc/driver/nvidia/version")),
    )


def nvidia_version(text: str | None) -> str | None:
    """The version in the text of /proc/driver/nvidia/version."""
    found = _DRIVER_VERSION.search(text or "")
    return found[1] if found else None


def _vendor(tree: Tree, address: str) -> int | None:
    return tree.number(f"{_DEVICES}/{address}/vendor")


def _card(tree: Tree, address: str) -> Card:
    folder = f"{_DEVICES}/{address}"
    state = tree.text(f"{folder}/power/runtime_status")
    awake = state not in ("suspended", "suspending")
    number = _vendor(tree, address)
    return Card(
        pci_id=address,
        vendor=_VENDORS[number or 0],
        driver=tree.target(f"{folder}/driver"),
        power_state=state,
        vram_bytes=tree.number(f"{folder}/mem_info_vram_total"),
        vram_used_bytes=tree.number(f"{folder}/mem_info_vram_used") if awake else None,
        gtt_bytes=tree.number(f"{folder}/mem_info_gtt_total"),
        gtt_used_bytes=tree.number(f"{folder}/mem_info_gtt_used") if awake else None,
        performance_level=tree.text(f"{folder}/power_dpm_force_performance_level") if awake else None,
    )

"""What NVIDIA's management library tells of its cards, where nvidia-ml-py is installed. Never asked while a card sleeps."""

from dataclasses import dataclass
from typing import Any, Protocol

from tokencli.world.machine.graphics import Graphics


@dataclass(frozen=True, slots=True)
class Told:
    """One card: memory in bytes, and its name."""

    pci_id: str
    total: int
    free: int


class Nvml(Protocol):
    """The part of pynvml that is used."""

    def nvmlInit(self) -> Any: ...
    def nvmlShutdown(self) -> Any: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...


def read_nvml(graphics: Graphics, library: Nvml | None, failed: list[str]) -> dict[str, Told]:
    """Cards by PCI id; empty where the library or a running driver is not there. A failure goes to `failed`."""
    cards = [card for card in graphics.cards if card.vendor == "nvidia"]
    if graphics.nvidia_driver is None or any(card.power_state == "suspended" for card in cards):
        return {}
    library = library or _installed()
    if library is None:
        return {}
    try:
        return _ask(library)
    except Exception as error:  # NVMLError has no base that could be named without the library
        failed.append(f"NVML: {error}")
        return {}


def pci_id(text: str | bytes) -> str:
    """NVML's "00000000:01:00.0" as the kernel writes it."""
    shown = text.decode() if isinstance(text, bytes) else text
    domain, _, rest = shown.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _ask(library: Nvml) -> dict[str, Told]:
    library.nvmlInit()
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        cards = [_told(library, handle) for handle in handles]
    finally:
        library.nvmlShutdown()
    return {card.pci_id: card for card in cards}


def _told(library: Nvml, handle: Any) -> Told:
    memory = library.nvmlDeviceGetMemoryInfo(handle)
    return Told(pci_id(library.nvmlDeviceGetPciInfo(handle).busId), int(memory.total), int(memory.free))


def _installed() -> Nvml | None:
    try:
        import pynvml
    except ImportError:
        return None
    library: Nvml = pynvml
    return library

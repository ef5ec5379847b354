"""The devices that llama.cpp lists, each with what the kernel and NVML say of the card that it is. Reads nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tokencli.core import Card, Device
from tokencli.world.machine.nvml import Told

_VENDOR_WORDS = {"amd": ("amd", "radeon"), "nvidia": ("nvidia", "geforce"), "intel": ("intel",)}


def joined(
    devices: Iterable[Device], cards: tuple[Card, ...], told: Mapping[str, Told], nvidia_driver: str | None
) -> tuple[Device, ...]:
    """Device by device, in llama.cpp's order; one whose card is not found stays as it is."""
    return tuple(_with_card(device, _card_of(device, cards), told, nvidia_driver) for device in devices)


def _card_of(device: Device, cards: tuple[Card, ...]) -> Card | None:
    """By its PCI id; without one, the only card of the vendor that its description names."""
    if device.kind not in ("gpu", "integrated"):
        return None
    if device.pci_id:
        return next((card for card in cards if card.pci_id == device.pci_id), None)
    shown = device.description.lower()
    matching = [card for card in cards if any(word in shown for word in _VENDOR_WORDS.get(card.vendor, ()))]
    return matching[0] if len(matching) == 1 else None


def _with_card(device: Device, card: Card | None, told: Mapping[str, Told], nvidia_driver: str | None) -> Device:
    if card is None:
        return device
    driver = f"nvidia {nvidia_driver}" if card.vendor == "nvidia" and nvidia_driver else card.driver
    known = replace(
        device, pci_id=card.pci_id, driver=driver, power_state=card.power_state, performance_level=card.performance_level
    )
    if device.kind == "integrated":
        return _with_shared_memory(known, card)
    free = [device.free_bytes]
    if card.vram_bytes is not None and card.vram_used_bytes is not None:
        free.append(max(card.vram_bytes - card.vram_used_bytes, 0))  # not every driver tells llama.cpp what others hold
    if card.pci_id in told:
        free.append(told[card.pci_id].free)
    return replace(known, free_bytes=min(free))


def _with_shared_memory(device: Device, card: Card) -> Device:
    """An integrated GPU has its carve-out and the GTT, whatever heap a driver tells of (reports A1-01, A1-02, A1-21, A1-31)."""
    if card.vram_bytes is None or card.gtt_bytes is None:
        return device
    total = card.vram_bytes + card.gtt_bytes
    used = (card.vram_used_bytes or 0) + (card.gtt_used_bytes or 0)
    free = total - used
    if device.total_bytes >= card.vram_bytes:  # the driver's own figure is of all of it: what it says is in use counts
        free = min(free, device.free_bytes)
    return replace(
        device,
        total_bytes=total,
        free_bytes=max(free, 0),
        carve_out_bytes=card.vram_bytes,
        carve_out_used_bytes=card.vram_used_bytes,
        gtt_bytes=card.gtt_bytes,
    )

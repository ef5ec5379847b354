"""Computers described in JSON files: those shipped in profiles/machines/, and a user's own. Their keys are Machine's fields."""

import json
import math
from pathlib import Path
from typing import Any

from tokencli.core import Card, Device, Machine
from tokencli.errors import UsageError


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
    values: dict[str, Any] = json.loads(text)
    devices = tuple(Device(**device) for device in values.pop("devices"))
    cards = tuple(Card(**card) for card in values.pop("cards", ()))
    lists = {name: tuple(values[name]) for name in ("backends", "inside", "failed_probes") if values.get(name) is not None}
    machine = Machine(**{**values, **lists, "devices": devices, "cards": cards})
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

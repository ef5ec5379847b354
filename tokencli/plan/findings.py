"""What is to be said of a computer: what was found, what was left out and why, and what would mend it. Pure.

Sources of the cures are the field reports and FACTS, Hardware detection.
"""

from collections.abc import Iterable, Iterator

from tokencli.core import Card, Device, Finding, Level, Machine, Quirk
from tokencli.errors import UsageError
from tokencli.plan.choose import Wishes, choose_device, is_software, quirks_of, rejected_devices

_CONTAINERS = ("docker", "podman", "lxc", "systemd-nspawn", "container")
_PAGE = 4096
_ORDER = ("fail", "warn", "pass")


def findings(machine: Machine, quirks: Iterable[Quirk] = ()) -> list[Finding]:
    """All that a snapshot tells, the costliest first."""
    known = tuple(quirks)
    parts = (_chosen(machine, known), _cards(machine), _software(machine), _wsl(machine), _memory(machine), _power(machine),
             _traits(machine, known), _cpu(machine), _probes(machine))  # fmt: skip
    return by_cost(each for part in parts for each in part)


def by_cost(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda each: _ORDER.index(each.level))


def _chosen(machine: Machine, quirks: tuple[Quirk, ...]) -> Iterator[Finding]:
    """The device that a plan takes by itself, and why no other."""
    try:
        device = choose_device(machine, Wishes(), quirks)
    except UsageError as error:
        yield Finding("warn", error.what, error.hint)
        return
    if device is None:
        yield Finding("pass", f"models run on the CPU, with {machine.threads} threads")
        return
    memory = f"{_gib(device.free_bytes)} of {_gib(device.total_bytes)} free"
    yield Finding("pass", f"models run on {device.id}: {device.description}, {device.kind}, {memory}")
    for each in rejected_devices(machine, device):
        yield Finding("pass", f"not taken: {each.what}: {each.why}", f"--device {each.what.partition(' ')[0]} takes it")


def _cards(machine: Machine) -> Iterator[Finding]:
    """Cards that the kernel shows and llama.cpp does not list: the first reason that applies."""
    listed = {device.pci_id for device in machine.devices}
    for card in machine.cards:
        if card.pci_id not in listed:
            yield _unlisted(card, machine)
    if not machine.cards and not _gpus(machine) and "cuda" in (machine.backends or ()) and machine.nvidia_driver:
        yield Finding("fail", f"NVIDIA's driver {machine.nvidia_driver} runs, but CUDA lists no card", _CUDA_CURE)


def _unlisted(card: Card, machine: Machine) -> Finding:
    name = f"the {card.vendor} graphics card at {card.pci_id}"
    backends = machine.backends or ()
    if card.power_state == "suspended":
        return Finding("warn", f"{name} sleeps and was not listed", "run tokencli doctor again: a look at it may take seconds")
    if card.driver is None:
        return Finding("fail", f"{name} has no kernel driver", "install the driver of its maker")
    if card.vendor == "nvidia" and machine.nvidia_driver is None:
        how = f"runs by {card.driver}" if card.driver != "nvidia" else "has a driver that does not answer"
        return Finding("fail", f"{name} {how}", "install NVIDIA's driver anew and restart; nvidia-smi must list the card")
    if card.vendor == "nvidia" and "cuda" in backends:
        return Finding(
            "fail", f"NVIDIA's driver {machine.nvidia_driver} runs, but CUDA lists no card at {card.pci_id}", _CUDA_CURE
        )
    if not {"cuda", "rocm", "hip", "vulkan", "sycl"} & set(backends):
        build = "cuda" if card.vendor == "nvidia" else "vulkan"
        return Finding(
            "fail", f"llama.cpp was built for the CPU alone, and there is {name}", f"TOKENCLI_BUILD={build} scripts/run"
        )
    return _unreachable(name, machine)


def _unreachable(name: str, machine: Machine) -> Finding:
    """Why a card whose driver runs is not listed by Vulkan."""
    nodes = machine.render_nodes
    if not nodes and _is_contained(machine):
        return Finding(
            "fail", f"{name} is outside of this container", "start it with --device /dev/dri (LXC: pass /dev/dri/renderD128)"
        )
    if not nodes:
        return Finding("fail", f"{name} has no render node in /dev/dri", "load its kernel driver: see dmesg for why it is not")
    if not any(nodes.values()):
        return Finding(
            "fail",
            f"{name}: this user may not open {', '.join(f'/dev/dri/{node}' for node in nodes)}",
            "join the groups: sudo usermod -aG render,video $USER, then log in again (container: --group-add)",
        )
    return Finding(
        "fail", f"{name} is reachable, but Vulkan has no driver for it", "install Mesa's: sudo apt install mesa-vulkan-drivers"
    )


def _software(machine: Machine) -> Iterator[Finding]:
    """Reports A1-11 to A1-13: a software device is no GPU."""
    software = [device for device in machine.devices if is_software(device)]
    if software and len(software) == len(_gpus(machine)):
        names = ", ".join(f"{each.id} ({each.description})" for each in software)
        yield Finding("warn", f"only software devices: {names}", "they are the CPU, slower; unset GGML_VK_VISIBLE_DEVICES")


def _wsl(machine: Machine) -> Iterator[Finding]:
    """Reports A1-24 to A1-27: under WSL a card is no PCI device; its driver is that of Windows."""
    if "wsl" in machine.inside and not any(not is_software(each) for each in _gpus(machine)):
        cure = "install the NVIDIA driver for Windows, none in WSL; then wsl --shutdown, and TOKENCLI_BUILD=cuda scripts/run"
        yield Finding("warn", "this is WSL, and llama.cpp lists no GPU in it", cure)


def _memory(machine: Machine) -> Iterator[Finding]:
    if machine.ram_limit_bytes is not None:
        what = f"a control group limits this process to {_gib(machine.ram_limit_bytes)} of memory"
        yield Finding("warn", what, "give the container or service more (docker run --memory, MemoryMax=)")
        if any(device.kind == "integrated" for device in machine.devices):
            yield Finding("warn", "what the integrated GPU takes of the RAM is not counted by that limit", _GTT_UNCHARGED)
    for device in machine.devices:
        if device.gtt_bytes is not None and device.gtt_bytes <= 0.55 * machine.ram_total_bytes:
            pages = machine.ram_total_bytes * 3 // 4 // _PAGE
            what = f"{device.id} may use {_gib(device.gtt_bytes)} of {_gib(machine.ram_total_bytes)} of RAM besides its carve-out"
            yield Finding(
                "warn", what, f"for larger models: kernel parameter ttm.pages_limit={pages} (before 6.x amdgpu.gttsize=MiB)"
            )
    if machine.memory_bandwidth:
        yield Finding("pass", f"{_gib(machine.ram_total_bytes)} of RAM, a copy moves {machine.memory_bandwidth / 1e9:.1f} GB/s")


def _power(machine: Machine) -> Iterator[Finding]:
    if machine.on_ac is False:
        yield Finding("warn", "on battery: slower, and measurements are of no use", "plug it in")
    for device in machine.devices:
        if device.performance_level in ("low", "auto"):
            file = f"/sys/bus/pci/devices/{device.pci_id}/power_dpm_force_performance_level"
            level: Level = "warn" if device.performance_level == "low" else "pass"
            cure = f"echo high | sudo tee {file} (a 780M gained 26 %: report A7-05)"
            yield Finding(level, f"{device.id} runs at performance level {device.performance_level}", cure)
        if device.power_state == "suspended":
            yield Finding("pass", f"{device.id} sleeps: it is woken when a plan uses it")


def _traits(machine: Machine, quirks: tuple[Quirk, ...]) -> Iterator[Finding]:
    for device in _gpus(machine):
        for quirk in quirks_of(device, quirks):
            yield Finding("pass", f"{device.id} ({device.description}): {quirk.what}", f"known from {quirk.source}")


def _cpu(machine: Machine) -> Iterator[Finding]:
    if machine.cpu_quota is not None and machine.logical_cpus and machine.cpu_quota < machine.logical_cpus:
        what = f"a control group grants {machine.cpu_quota:g} of {machine.logical_cpus} CPUs"
        yield Finding("warn", what, "give the container or service more (docker run --cpus, CPUQuota=)")
    if machine.efficiency_cores:
        what = f"{machine.performance_cores} fast and {machine.efficiency_cores} slower cores: only the fast ones get a thread"
        yield Finding("pass", what, "--threads N for more")


def _probes(machine: Machine) -> Iterator[Finding]:
    for probe in machine.failed_probes:
        yield Finding("warn", f"could not be read: {probe}")


def _gpus(machine: Machine) -> list[Device]:
    return [device for device in machine.devices if device.kind in ("gpu", "integrated")]


def _is_contained(machine: Machine) -> bool:
    return any(each in _CONTAINERS for each in machine.inside)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


_CUDA_CURE = (
    "after suspend: sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm; else match libcuda to the driver, or restart"
)
_GTT_UNCHARGED = "plans keep to the smaller of the limit and what the host has free (report A1-17)"

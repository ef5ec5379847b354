"""What the system runs inside of, and whether it is on mains power."""

from collections.abc import Iterator

from tokencli.world.machine.tree import Tree

_SUPPLIES = "sys/class/power_supply"


def surroundings(tree: Tree) -> tuple[str, ...]:
    """Of vm, wsl, docker, podman, lxc and the like, from the outermost; empty on plain hardware."""
    return tuple(dict.fromkeys(_found(tree)))


def _found(tree: Tree) -> Iterator[str]:
    if "microsoft" in (tree.text("proc/version") or "").lower():
        yield "wsl"
    elif _has_hypervisor(tree):
        yield "vm"
    if kind := tree.text("run/systemd/container"):
        yield kind
    if tree.has("dev/.lxc-boot-id") or "lxcfs" in (tree.text("proc/self/mounts") or ""):
        yield "lxc"
    if tree.has(".dockerenv"):
        yield "docker"
    if tree.has("run/.containerenv"):
        yield "podman"


def _has_hypervisor(tree: Tree) -> bool:
    lines = (tree.text("proc/cpuinfo") or "").splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def on_ac(tree: Tree) -> bool | None:
    """True on mains, False on battery, None where nothing tells: most desktops (report A1-23)."""
    supplies = [f"{_SUPPLIES}/{name}" for name in tree.names(_SUPPLIES)]
    own = [folder for folder in supplies if tree.text(f"{folder}/scope") != "Device"]  # a mouse has a battery too
    kinds = {folder: tree.text(f"{folder}/type") for folder in own}
    if any(tree.text(f"{folder}/online") == "1" for folder, kind in kinds.items() if kind in ("Mains", "USB")):
        return True
    if "Battery" in kinds.values():
        return False
    return False if "Mains" in kinds.values() else None

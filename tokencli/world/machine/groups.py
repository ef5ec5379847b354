"""The control groups this process is in, v1 and v2: which folders limit it, from its own up to the root."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from tokencli.world.machine.tree import Tree

_TOP = "sys/fs/cgroup"


def folders(tree: Tree, controller: str) -> list[str]:
    """Folders whose limits count for `controller` (memory or cpu): all of them bind, so the narrowest does.

    In a container the process may see only the top, though its path is longer (/proc/self/cgroup tells the host's).
    """
    return [folder for top, path in _places(tree, controller) for folder in _upwards(tree, top, path)]


def _places(tree: Tree, controller: str) -> Iterator[tuple[str, str]]:
    """(top folder, own path) in each hierarchy that may limit; the tops alone where the process is told no path."""
    paths = {"": "/", controller: "/"}
    for line in (tree.text("proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "" or controller in controllers.split(","):
            paths[controllers and controller] = path
    yield _TOP, paths[""]
    yield f"{_TOP}/{controller}", paths[controller]
    yield f"{_TOP}/unified", paths[""]


def _upwards(tree: Tree, top: str, path: str) -> Iterator[str]:
    own = PurePosixPath(path.lstrip("/"))
    for part in (own, *own.parents):
        folder = str(PurePosixPath(top) / part)
        if ".." not in part.parts and tree.has(folder):
            yield folder

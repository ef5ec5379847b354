"""Which backends the installed llama.cpp was built with, by its libraries' names: nothing is loaded."""

import importlib.util
from pathlib import Path

_NOT_A_BACKEND = ("base",)


def library_files() -> list[Path]:
    """The ggml libraries beside llama_cpp; none where it is not installed."""
    spec = importlib.util.find_spec("llama_cpp")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else None
    return sorted(folder.glob("*ggml-*")) if folder else []


def backends() -> tuple[str, ...] | None:
    """cpu, vulkan, cuda and the like, sorted; None where nothing is found."""
    return named_backends([file.name for file in library_files()])


def named_backends(names: list[str]) -> tuple[str, ...] | None:
    """From file names such as libggml-vulkan.so.0."""
    parts = {name.partition("ggml-")[2].partition(".")[0].partition("-")[0] for name in names}
    return tuple(sorted(parts - {"", *_NOT_A_BACKEND})) or None

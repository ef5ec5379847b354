"""The user's own prompts, from a file or a folder of them: a file is a kind, and a line of three dashes parts its prompts."""

import re
from dataclasses import dataclass
from pathlib import Path

from tokencli.errors import UsageError

_BETWEEN = re.compile(r"^---[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`kind`: the name of its file, without the ending."""

    kind: str
    text: str


def read_prompts(place: Path) -> tuple[Prompt, ...]:
    """In the order of the files' names; empty ones are left out. Raises UsageError for what cannot be read."""
    try:
        files = sorted(each for each in place.iterdir() if each.is_file()) if place.is_dir() else [place]
        texts = [(file.stem, file.read_text("utf-8", "replace")) for file in files]
    except OSError as error:
        raise UsageError(f"the prompts {place} cannot be read: {error.strerror}", "check the path") from None
    return tuple(Prompt(kind, part.strip()) for kind, text in texts for part in _BETWEEN.split(text) if part.strip())

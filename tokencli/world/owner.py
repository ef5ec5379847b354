"""Whose computer this is: the words that are of nobody's business in a report, and what may stand for them."""

import getpass
import re
import socket
from collections.abc import Mapping
from pathlib import Path

_SHORTEST = 3  # a shorter name is a part of any text


def owner() -> Mapping[str, str]:
    """The home folder, the user's name and the computer's."""
    found = {}
    try:
        found[str(Path.home())] = "~"
        found[getpass.getuser()] = "USER"
    except (OSError, KeyError, RuntimeError):
        pass  # a user without an entry has no name to hide
    found[socket.gethostname()] = "HOST"
    return {word: shown for word, shown in found.items() if len(word) >= _SHORTEST and word not in ("root", "localhost")}


def without(text: str, words: Mapping[str, str]) -> str:
    """The text with each word that stands alone replaced, the longest first."""
    for word in sorted(words, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", words[word], text)
    return text

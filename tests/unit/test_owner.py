"""The words that say whose computer it is are taken out of a report, and no other."""

import getpass
from pathlib import Path

import pytest

from tokencli.world.owner import owner, without

WORDS = {"/home/al": "~", "alice": "USER", "box": "HOST", "alice-box": "HOST"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/al/models/x.gguf", "~/models/x.gguf"),
        ("/home/alice/x", "/home/USER/x"),
        ("/home/al", "~"),
        ("alice@box: alice-box, alice's", "USER@HOST: HOST, USER's"),
        ("malice, alices, boxes, Box", "malice, alices, boxes, Box"),
        ("", ""),
    ],
)
def test_words_that_stand_alone_are_replaced(text: str, shown: str) -> None:
    assert without(text, WORDS) == shown


def test_what_belongs_to_the_owner_here() -> None:
    found = owner()
    assert found[str(Path.home())] == "~"
    assert (getpass.getuser() in found) == (getpass.getuser() != "root" and len(getpass.getuser()) > 2)
    assert all(len(word) > 2 for word in found)

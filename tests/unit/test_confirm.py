"""Asking a person, and what happens where there is none."""

import io

import pytest

from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Progress, fetching
from tokencli.core import Fetching, Note
from tokencli.errors import UsageError


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(typed: str, person: bool = True) -> Terminal:
    kind = Screen if person else io.StringIO
    return Terminal(kind(typed), io.StringIO(), kind(), {"TERM": "xterm"})


@pytest.mark.parametrize(("typed", "agreed"), [("\n", True), ("y\n", True), ("YES\n", True), ("n\n", False), ("what?\n", False)])
def test_the_answer(typed: str, agreed: bool) -> None:
    asked = terminal(typed)
    assert asked.confirm("5.0 GB to download") == agreed
    assert asked.stderr.getvalue() == "5.0 GB to download. Go on? [Y/n] "


def test_nobody_there_is_told_what_to_add() -> None:
    with pytest.raises(UsageError, match="5 GB") as caught:
        terminal("", person=False).confirm("5 GB")
    assert "--yes" in caught.value.hint
    assert terminal("", person=False).confirm("5 GB", yes=True)


def test_a_download_has_a_rate_and_a_time_left() -> None:
    assert fetching(Fetching(10**9, 4 * 10**9)) == "downloading 1.00 of 4.00 GB"
    assert fetching(Fetching(10**9, 4 * 10**9, 50e6)) == "downloading 1.00 of 4.00 GB, 50.0 MB/s, 1 min left"
    assert fetching(Fetching(0, 4 * 10**9, 1e6)).endswith("1 h 6 min left")
    assert fetching(Fetching(0, 10**7, 1e6)).endswith("10 s left")


def test_progress_moves_for_a_person_and_is_not_there_for_a_pipe() -> None:
    for person in (True, False):
        screen = terminal("", person)
        progress = Progress(screen, quiet=False)
        progress.show(Fetching(1, 2))
        progress.show(Note("a\nnote"))
        moving = "\r\x1b[Kdownloading 0.00 of 0.00 GB\r\x1b[K" if person else ""
        assert screen.stderr.getvalue() == moving + "note: a note\n"
    quiet = terminal("")
    Progress(quiet, quiet=True).show(Note("hush"))
    assert quiet.stderr.getvalue() == ""

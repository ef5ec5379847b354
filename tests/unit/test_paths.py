"""What is typed as a path: a home is found, and nothing that can be typed is a traceback."""

from pathlib import Path

import pytest

from tokencli.app.templates import template_source
from tokencli.errors import UsageError
from tokencli.paths import typed
from tokencli.world.catalogue import parse_catalogue, resolve
from tokencli.world.hub.cache import cache_folder

NOBODY = "~no-such-user/there"


def test_a_home_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert typed("~/a file") == tmp_path / "a file"
    assert typed("here/~") == Path("here/~")


def test_another_users_home_that_is_not_there_stays_as_it_is() -> None:
    """Path.expanduser raises RuntimeError then."""
    assert typed(NOBODY) == Path(NOBODY)
    assert cache_folder({"HF_HOME": NOBODY}) == Path(NOBODY) / "hub"
    assert resolve("mine", parse_catalogue(f'[mine]\npath = "{NOBODY}"')) == Path(NOBODY)
    with pytest.raises(UsageError, match="no readable file"):
        template_source(NOBODY)


def test_what_no_system_takes_is_said() -> None:
    with pytest.raises(UsageError, match=r"'a\\x00b' is no path"):
        typed("a\0b")

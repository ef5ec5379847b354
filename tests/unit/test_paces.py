"""What speculation learned is on disk for the next run: written whole, and nothing worse than a new start where it is damaged."""

import json
from pathlib import Path

import pytest

from tokencli.world.paces import MOST, Paces


def test_a_pace_is_found_again_by_its_key_only(tmp_path: Path) -> None:
    paces = Paces(tmp_path / "cache" / "paces.json")
    assert paces.find("a") is None
    paces.keep("a", {"x": [1.5]})
    paces.keep("b", {"x": 2})
    assert Paces(paces.file).find("a") == {"x": [1.5]}
    assert paces.find("c") is None
    assert [file.name for file in paces.file.parent.iterdir()] == ["paces.json"], "nothing half-written stays"


@pytest.mark.parametrize("text", ["", "{", "[1]", '"a"', '{"a": 3}', "\x00\xff"])
def test_a_damaged_file_is_a_new_start(tmp_path: Path, text: str) -> None:
    paces = Paces(tmp_path / "paces.json")
    paces.file.write_text(text, "latin-1")
    assert paces.find("a") is None
    paces.keep("a", {"x": 1})
    assert paces.find("a") == {"x": 1}


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    paces = Paces(tmp_path / "paces.json")
    for number in range(MOST):
        paces.keep(str(number), {"n": number})
    paces.keep("0", {"n": 0})
    paces.keep("new", {})
    assert paces.find("1") is None
    assert paces.find("0") == {"n": 0}
    assert len(json.loads(paces.file.read_text())) == MOST


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    paces = Paces(tmp_path / "file" / "paces.json")
    paces.keep("a", {})
    assert paces.find("a") is None

"""The linked llama.cpp is the one this code was written for, or the user is told what to type."""

import pytest

from tokencli.engine.library import check_version
from tokencli.errors import EngineMissing


def test_the_pinned_version_is_right() -> None:
    check_version("0.3.36", "0.3.36")


@pytest.mark.parametrize("installed", ["0.3.35", "0.3.37", "0.3.36.post1", "0.3.3", ""])
def test_any_other_version_is_refused_with_both_and_what_to_type(installed: str) -> None:
    with pytest.raises(EngineMissing) as caught:
        check_version("0.3.36", installed)
    assert caught.value.what == f"llama-cpp-python {installed} is installed, but tokencli needs exactly 0.3.36"
    assert "scripts/run" in caught.value.hint
    assert "pip install --force-reinstall llama-cpp-python==0.3.36" in caught.value.hint


def test_no_version_is_told_apart() -> None:
    with pytest.raises(EngineMissing, match=r"^llama-cpp-python 0\.3\.36 is not installed$") as caught:
        check_version("0.3.36", None)
    assert "llama-cpp-python==0.3.36" in caught.value.hint

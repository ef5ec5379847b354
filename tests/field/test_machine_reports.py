"""The reports on hardware detection and performance: each is kept by a named test that knows it by its id.

Ids of ../shared/field/reports.md. What is tested is in the table of README.md; the computers are in tests/unit/machines.toml.
"""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DETECTION = (1, 2, 4, 5, 9, 11, 12, 13, 14, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30, 31, 32, 33, 34)
PERFORMANCE = (1, 2, 3, 4, 5, 8, 10, 12, 13, 14, 15, 16, 17, 19)
IDS = [f"A1-{number:02}" for number in DETECTION] + [f"A7-{number:02}" for number in PERFORMANCE]
ROWS = [line for line in Path(__file__).with_name("README.md").read_text("utf-8").splitlines() if line.startswith("|")]
MACHINES = tomllib.loads((ROOT / "tests/unit/machines.toml").read_text("utf-8"))["machine"]
TABLE = "tests/unit/test_machines.py::test_a_computer_is_understood"


def named(report: str) -> list[str]:
    """The tests that the table names for a report, as file::function."""
    rows = [line for line in ROWS if mentions(line.split("|")[1], report)]
    return [test for row in rows for test in re.findall(r"tests/\w+/\w+\.py::\w+", row)]


def mentions(text: str, report: str) -> bool:
    """By its own id, or as one of "A1-24 to A1-26"."""
    kind, _, number = report.partition("-")
    spans = re.findall(rf"{kind}-(\d+) to {kind}-(\d+)", text)
    return report in text or any(int(first) <= int(number) <= int(last) for first, last in spans)


def source(test: str) -> str:
    """What its file and itself say: the module's docstring, the test to the next one; of the table of computers their names."""
    file, _, function = test.partition("::")
    if test == TABLE:
        return " ".join(machine["name"] for machine in MACHINES)
    parts = re.split(r"\n(?=(?:    )?(?:@pytest|def |class ))", (ROOT / file).read_text("utf-8"))
    return parts[0] + next(part for part in parts if f"def {function}(" in part)


@pytest.mark.parametrize("report", IDS)
def test_each_report_is_kept_by_tests_of_which_one_names_it(report: str) -> None:
    tests = named(report)
    assert tests, "no test is named for it"
    assert any(mentions(source(test), report) for test in tests), f"none of {tests} says that it is for {report}"


@pytest.mark.parametrize("machine", [each for each in MACHINES if "(A" in each["name"]], ids=lambda each: each["name"])
def test_a_computer_of_a_report_shows_more_than_that_it_can_be_read(machine: dict[str, object]) -> None:
    """What the report is about is a budget of its own, or something that is said or not said."""
    plain = machine["budget"] == round(0.9 * machine["ram"][1], 3)  # type: ignore[index]
    assert machine.get("says") or machine.get("silent") or machine.get("allowed") or not plain

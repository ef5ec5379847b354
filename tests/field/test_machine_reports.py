"""The reports on hardware detection and performance: each is kept by a named test, or stands with the reason why not.

Ids of ../shared/field/reports.md. What is tested is in the table of README.md; the computers are in tests/unit/machines.toml.
"""

import re
from pathlib import Path

import pytest

DETECTION = (1, 2, 4, 5, 9, 11, 12, 13, 14, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30, 31, 32, 33, 34)
PERFORMANCE = (1, 2, 3, 4, 5, 8, 10, 12, 13, 14, 15, 16, 17, 19)
IDS = [f"A1-{number:02}" for number in DETECTION] + [f"A7-{number:02}" for number in PERFORMANCE]
INDEX = Path(__file__).with_name("README.md").read_text("utf-8")
MACHINES = (Path(__file__).parents[1] / "unit/machines.toml").read_text("utf-8")


@pytest.mark.parametrize("report", IDS)
def test_each_report_is_kept_or_told_why_not(report: str) -> None:
    rows = [line for line in INDEX.splitlines() if line.startswith("|") and re.search(rf"\b{report}\b", line.split("|")[1])]
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[-1], row


@pytest.mark.parametrize(
    "report", ["A1-01", "A1-04", "A1-05", "A1-11", "A1-13", "A1-14", "A1-17", "A1-21", "A1-23", "A1-28", "A1-31", "A1-34"]
)
def test_a_report_with_a_computer_has_it_in_the_table(report: str) -> None:
    assert report in MACHINES

"""The table in tests/field/README.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_named_test_exists() -> None:
    named = re.findall(r"(tests/\w+/\w+\.py)(?:::(\w+))?", (ROOT / "tests/field/README.md").read_text("utf-8"))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text("utf-8"))
    ]
    assert missing == []
    assert len(named) > 20

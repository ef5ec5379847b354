"""Which draft is recommended for which prompts: what one half of them chooses is held against no draft on the other."""

import json
from pathlib import Path

import pytest

from tests.unit.test_app import PLAN
from tokencli.app.drafts import Report, Task
from tokencli.app.prompts import Prompt, read_prompts
from tokencli.cli.drafts_view import drafts_json, drafts_lines
from tokencli.errors import UsageError
from tokencli.tune.drafts import Sample, advice, fastest


def answers(kind: str, first: int, costs: dict[str, float], count: int = 6, held: dict[str, float] | None = None) -> list[Sample]:
    """Prompts of a kind, every second one held out."""
    return [
        Sample(kind, first + number, 0, arm, bool(number % 2), cost + 0.001 * number, 10 * (arm != "off"), 6 * (arm != "off"))
        for number in range(count)
        for arm, cost in ((held or costs) if number % 2 else costs).items()
    ]


CODE = answers("code", 0, {"off": 1.0, "lookup": 0.5, "model": 0.7}, 12)
PROSE = answers("prose", 20, {"off": 1.0, "lookup": 1.2, "model": 1.1}, 12)


def test_each_kind_has_its_own_and_all_together_theirs() -> None:
    code, prose, every = advice([*CODE, *PROSE])
    assert (code.kind, code.chosen, code.recommended, code.prompts) == ("code", "lookup", "lookup", 6)
    assert code.gain
    assert code.gain.median == pytest.approx(2, abs=0.05)
    assert code.acceptance == 0.6
    assert (prose.chosen, prose.gain, prose.recommended) == ("off", None, "off")
    assert every.kind is None
    assert every.prompts == 12


def test_what_wins_by_luck_where_it_is_chosen_does_not_pass() -> None:
    lucky = answers("code", 0, {"off": 1.0, "lookup": 0.8}, 12, held={"off": 1.0, "lookup": 1.1})
    (found, _) = advice(lucky)
    assert (found.chosen, found.recommended) == ("lookup", "off")
    assert found.gain
    assert found.gain.high < 1


def test_few_pairs_recommend_nothing() -> None:
    (found, _) = advice(answers("code", 0, {"off": 1.0, "lookup": 0.5}, 4))
    assert found.gain
    assert (found.gain.pairs, found.chosen, found.recommended) == (2, "lookup", "off")


def test_the_choice_is_by_totals_over_the_half_that_chooses() -> None:
    assert fastest([*CODE, *PROSE], "code") == "lookup"
    assert fastest([each for each in CODE if each.held_out]) is None
    assert advice([]) == ()


def test_a_person_reads_what_was_told_and_what_was_not() -> None:
    few = answers("letters", 40, {"off": 1.0, "model": 0.5}, 2)
    lone = answers("lone", 50, {"off": 1.0, "model": 0.5}, 1)
    arms = ("off", "lookup", "model")
    report = Report(PLAN, Task("target", Path("p")), arms, (*CODE, *PROSE, *few, *lone), kept=("lookup", "model"))
    lines = drafts_lines(report)
    assert lines[0] == "target: off, lookup, model on 27 prompts, answers of 128 tokens"
    assert lines[1].startswith("  code: lookup 1.99 times as fast (1.98 to 2.00)")
    assert lines[1].endswith("on 6 prompts held out, acceptance 0.60: lookup")
    assert lines[2] == "  prose: no draft was faster on the prompts that choose: off"
    assert lines[3].endswith("of 1 pair, too few to tell")
    assert "at least two of a kind are needed" in lines[4]
    assert lines[5].startswith("  in all: ")
    assert lines[6].startswith("what was learned of lookup and model is kept")
    found = json.loads(drafts_json(report))
    assert set(found) == {"plan", "tokens", "arms", "advice", "answers", "kept", "interrupted"}
    assert [each["kind"] for each in found["advice"]] == ["code", "prose", "letters", "lone", None]
    assert len(found["answers"]) == len(report.samples)


def test_a_file_is_a_kind_and_dashes_part_its_prompts(tmp_path: Path) -> None:
    (tmp_path / "code.txt").write_text("one\nline two\n---\ntwo -- dashes\n---  \n\n---\nthree")
    (tmp_path / "mail.md").write_text("hello\n----\nno line of three")
    (tmp_path / "empty.txt").write_text("\n")
    assert read_prompts(tmp_path) == (
        Prompt("code", "one\nline two"), Prompt("code", "two -- dashes"), Prompt("code", "three"),
        Prompt("mail", "hello\n----\nno line of three"),
    )  # fmt: skip
    assert read_prompts(tmp_path / "mail.md")[0].kind == "mail"
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "missing")

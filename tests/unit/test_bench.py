"""What bench makes of its answers, and prompts of a wanted length in vocabularies that are not ours."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.unit.test_app import PLAN
from tokencli.app.bench import DRAFTED, FIGURES, PLAIN, Ran, Report, Task
from tokencli.app.bench_compare import Earlier, changes, read_earlier, refuse_another
from tokencli.app.measuring import prose, text_of
from tokencli.cli.bench import report_json, report_lines, verdict
from tokencli.core import Percentiles, Stats
from tokencli.errors import UsageError

STATS = Stats(512, 0, 128, 1.0, 0.5, 1000.0, 10.0, Percentiles(90.0, 110.0, 150.0), 1.0, 0, 0, 0.1)


def ran(arm: str, number: int, speed: float | None) -> Ran:
    drafted = {"drafted": 100, "accepted": 60} if arm == DRAFTED else {}
    return Ran(arm, number, dataclasses.replace(STATS, decode_tokens_per_second=speed, **drafted))


def report(*pairs: tuple[float, float | None], interrupted: bool = False) -> Report:
    answers = [
        ran(arm, number, speed) for number, pair in enumerate(pairs, 1) for arm, speed in zip((PLAIN, DRAFTED), pair, strict=True)
    ]
    return Report(PLAN, Task("target"), 512, "a CPU, 2 cores", "0.3.36", tuple(answers), interrupted)


FIVE = report((10, 15), (12, 20), (8, 11), (10, 16), (11, 15))


@pytest.mark.parametrize("per_word", [1, 2, 3])
@pytest.mark.parametrize("length", [40, 128, 1000])
def test_a_prompt_has_exactly_the_tokens_asked_for(per_word: int, length: int) -> None:
    def count(text: str) -> int:
        return 21 + per_word * len(text.split()) + text.count("a ") // 7 + text.endswith(",")

    text = text_of(length, count)
    assert count(text) in (length, length - 1) if per_word > 1 else count(text) == length


def test_where_the_template_alone_is_longer_the_prompt_is_empty() -> None:
    assert text_of(10, lambda text: 20 + len(text)) == ""


def test_the_prose_does_not_repeat_itself() -> None:
    words = prose(4000)
    assert len(words) >= 4000
    sentences = " ".join(words).split(". ")
    assert len(set(sentences)) / len(sentences) > 0.85
    assert words == prose(4000)


def test_figures_are_medians_over_the_answers_of_an_arm() -> None:
    plain = FIVE.figure(PLAIN, FIGURES["decode_tokens_per_second"])
    assert plain
    assert (plain.median, plain.low, plain.high, plain.count) == (10, 8, 12, 5)
    acceptance = FIVE.figure(DRAFTED, FIGURES["acceptance"])
    assert acceptance
    assert acceptance.median == 0.6
    assert FIVE.figure(PLAIN, FIGURES["acceptance"]) is None


def test_the_gain_of_the_draft_is_of_pairs() -> None:
    assert FIVE.speedup
    assert FIVE.speedup.median == 1.5
    assert FIVE.speedup.pairs == 5
    assert report((10, 15), (12, None)).speedup.pairs == 1  # type: ignore[union-attr]
    assert dataclasses.replace(FIVE, ran=FIVE.ran[:1]).speedup is None


@pytest.mark.parametrize(("low", "high", "says"), [(1.1, 1.2, "faster"), (0.9, 1.2, "indistinguishable"), (0.5, 0.9, "slower")])
def test_the_verdict_is_the_intervals(low: float, high: float, says: str) -> None:
    assert verdict(low, high) == says


def test_the_table_says_how_sure_it_is() -> None:
    lines = report_lines(FIVE)
    assert "10.0 (8.0 to 12.0)" in "\n".join(lines)
    assert lines[-2].endswith(": faster")
    assert lines[-1] == "median (interval) of 5 answers each"
    few = report_lines(report((10, 15), interrupted=True))
    assert few[-1].startswith("median (interval) of 1 answers each, too few")
    assert few[-1].endswith(", interrupted")


def test_json_has_every_answer_and_every_figure_with_its_interval() -> None:
    found = json.loads(report_json(FIVE))
    assert set(found["arms"]) == {"plain", "draft"}
    assert found["arms"]["plain"]["decode_tokens_per_second"] == {"median": 10, "low": 8, "high": 12, "count": 5}
    assert found["arms"]["plain"]["acceptance"] is None
    assert found["speedup"]["pairs"] == 5
    assert len(found["runs"]) == 10
    assert (found["prompt_tokens"], found["tokens"], found["interrupted"]) == (512, 128, False)


class TestComparison:
    SLOW = report((5, 15), (6, 20), (4, 11), (5, 16), (5.5, 15))

    @pytest.fixture
    def earlier(self, tmp_path: Path) -> Earlier:
        """What FIVE has written."""
        file = tmp_path / "old.json"
        file.write_text(report_json(FIVE))
        return read_earlier(file)

    def test_figures_are_told_apart_only_by_their_intervals(self, earlier: Earlier) -> None:
        verdicts = {(each.arm, each.figure): each.verdict for each in changes(self.SLOW, earlier)}
        assert verdicts[("plain", "decode_tokens_per_second")] == "slower"
        assert verdicts[("draft", "decode_tokens_per_second")] == "indistinguishable"
        assert verdicts[("plain", "ttft_seconds")] == "indistinguishable"
        quick = [dataclasses.replace(each, stats=dataclasses.replace(each.stats, ttft_seconds=0.1)) for each in FIVE.ran]
        found = changes(dataclasses.replace(FIVE, ran=tuple(quick)), earlier)
        assert [each.verdict for each in found if each.figure == "ttft_seconds"] == ["faster", "faster"]

    def test_fewer_than_five_answers_tell_nothing(self, earlier: Earlier) -> None:
        assert {each.verdict for each in changes(report((1, 1), (1, 1)), earlier)} == {"too few to tell"}

    @pytest.mark.parametrize(
        ("other", "says"),
        [
            ({"computer": "another"}, "another computer: a CPU, 2 cores, now another"),
            ({"prompt_tokens": 100}, "another prompt's length"),
            ({"task": Task("target", tokens=7)}, "another answer's length"),
            ({"plan": dataclasses.replace(PLAN, model=dataclasses.replace(PLAN.model, bytes=1))}, "another model's bytes"),
        ],
    )
    def test_what_is_not_the_same_is_refused(self, earlier: Earlier, other: dict[str, object], says: str) -> None:
        refuse_another(earlier, FIVE)
        with pytest.raises(UsageError, match=says):
            refuse_another(earlier, dataclasses.replace(FIVE, **other))

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"arms": 3}', "<html>"])
    def test_what_is_no_report_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(UsageError, match="no report"):
            read_earlier(tmp_path / "x.json")
        with pytest.raises(UsageError, match="cannot be read"):
            read_earlier(tmp_path / "missing.json")

    def test_a_person_and_a_program_get_the_verdicts(self, earlier: Earlier) -> None:
        compared = dataclasses.replace(self.SLOW, task=Task("target", earlier=earlier))
        lines = report_lines(compared)
        assert "  plain decode tokens/s: 10.0 then, 0.50 times now: slower" in lines
        rows = json.loads(report_json(compared))["compared"]
        assert {"plain", "draft"} == {row["arm"] for row in rows}
        assert json.loads(report_json(self.SLOW))["compared"] is None

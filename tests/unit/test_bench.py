"""What bench makes of its answers, and prompts of a wanted length in vocabularies that are not ours."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import pytest

from tests.unit.test_app import PLAN
from tokencli.app.bench import DRAFTED, FIGURES, PLAIN, Ran, Report, Task
from tokencli.app.bench_compare import Earlier, changes, read_earlier, refuse_another
from tokencli.app.measuring import prose, text_of
from tokencli.app.throughput import Passed, measured, throughputs
from tokencli.cli.bench import depths_of
from tokencli.cli.bench_view import csv_lines, markdown_lines, report_json, report_lines, verdict
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


PASSES = tuple(
    Passed(test, number, 10.0 * number)
    for number in range(1, 6)
    for test in throughputs(512, 128, (0, 2048))
)  # fmt: skip


def test_the_tests_of_llama_bench_have_its_names() -> None:
    assert [str(test) for test in throughputs(512, 128, (2048, 0, 0))] == ["pp512", "tg128", "pp512 @ d2048", "tg128 @ d2048"]
    found = dataclasses.replace(FIVE, passed=PASSES).throughput
    assert {str(test): (speed.median, speed.low, speed.high) for test, speed in found.items()}["tg128 @ d2048"] == (30, 10, 50)


def test_tests_are_measured_by_depth_in_turn_after_one_to_warm_up() -> None:
    class Clocked:
        calls: ClassVar[list[tuple[int, int, bool]]] = []

        def throughput(self, tokens: int, depth: int, *, at_once: bool) -> float:
            self.calls.append((tokens, depth, at_once))
            return 0.5

    engine = Clocked()
    found = list(measured(engine, throughputs(8, 4, (0, 16)), 2))  # type: ignore[arg-type]
    here = [(8, 0, True), (1, 0, False), (8, 0, True), (4, 0, False), (8, 0, True), (4, 0, False)]
    assert engine.calls == here + [(tokens, 16, at_once) for tokens, _, at_once in here]
    assert [(str(each.test), each.number, each.tokens_per_second) for each in found[:3]] == [
        ("pp8", 1, 16), ("tg4", 1, 8), ("pp8", 2, 16)
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "depths"), [(None, None), ("none", ()), ("0", (0,)), ("0, 2048", (0, 2048))])
def test_depths_are_a_list(text: str | None, depths: tuple[int, ...] | None) -> None:
    assert depths_of(text) == depths


@pytest.mark.parametrize("text", ["", "-1", "0;5", "deep", "99999999"])
def test_other_depths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--depths"):
        depths_of(text)


def test_csv_is_one_shape_and_markdown_one_table() -> None:
    found = dataclasses.replace(FIVE, passed=PASSES)
    rows = list(csv.DictReader(csv_lines(found)))
    assert {(row["arm"], row["figure"]): row["median"] for row in rows}[("draft", "decode_tokens_per_second")] == "15"
    assert {row["figure"] for row in rows} >= {"pp512", "tg128 @ d2048", "ttft_seconds"}
    assert len({(row["model"], row["computer"], row["count"]) for row in rows}) == 1
    lines = markdown_lines(found)
    assert lines[2:4] == ["| | plain | draft |", "|---|---:|---:|"]
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {4}
    assert "| tg128 @ d2048 tokens/s | 30.0 (10.0 to 50.0) | - |" in table
    assert "pp512                       30.0 (10.0 to 50.0) tokens/s" in report_lines(found)


def test_energy_and_the_share_of_the_bandwidth_are_shown_where_something_tells() -> None:
    assert "joules" not in "\n".join(report_lines(FIVE))
    told = [
        dataclasses.replace(each, joules_per_token=0.25, stats=dataclasses.replace(each.stats, bandwidth_share=0.7))
        for each in FIVE.ran
    ]
    found = dataclasses.replace(FIVE, ran=tuple(told), energy="the battery's drain")
    lines = report_lines(found)
    assert lines[-1] == "joules by the battery's drain"
    assert any(line.startswith("joules/token") and "0.25" in line for line in lines)
    assert any(line.startswith("bandwidth share") and "0.70" in line for line in lines)
    value = json.loads(report_json(found))
    assert (value["energy"], value["runs"][0]["joules_per_token"]) == ("the battery's drain", 0.25)
    assert value["arms"]["plain"]["joules_per_token"]["median"] == 0.25


def test_the_table_says_how_sure_it_is() -> None:
    lines = report_lines(FIVE)
    assert "10.0 (8.0 to 12.0)" in "\n".join(lines)
    assert lines[-2].endswith(": faster")
    assert lines[-1] == "median (interval) of 5 answers each"
    few = report_lines(report((10, 15), interrupted=True))
    assert few[-1].startswith("median of 1 answers each, too few for an interval")
    assert "(" not in few[4], "no interval of one answer"
    assert few[-2].endswith("too few for an interval): too few to tell")
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

    def test_the_tests_of_llama_bench_are_compared_too(self, tmp_path: Path) -> None:
        file = tmp_path / "old.json"
        file.write_text(report_json(dataclasses.replace(FIVE, passed=PASSES)))
        slow = [dataclasses.replace(each, tokens_per_second=each.tokens_per_second / 100) for each in PASSES]
        verdicts = {
            each.figure: each.verdict for each in changes(dataclasses.replace(FIVE, passed=tuple(slow)), read_earlier(file))
        }
        assert (verdicts["tg128"], verdicts["decode_tokens_per_second"]) == ("slower", "indistinguishable")

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

"""What is seen of tune: rows as the trials come, a result that says how sure it is, JSON, and what is remembered."""

import dataclasses
import io
import json

import pytest

from tests.unit.test_app import PLAN
from tests.unit.test_tuned_file import ENTRY
from tokencli.app.calibrating import Learned
from tokencli.app.tune import Matrix, Result, Spent, Task, Tried
from tokencli.cli.terminal import Terminal
from tokencli.cli.tune import budget_seconds
from tokencli.cli.tune_view import TuneView, list_json, list_lines, matrix_lines, result_json, result_lines
from tokencli.core import Calibration
from tokencli.errors import UsageError
from tokencli.tune.calibrate import Fit
from tokencli.tune.intervals import Interval, Ratio
from tokencli.tune.search import Choice, Dial, Failure, Gain, Outcome, Trial
from tokencli.world.calibrated import Calibrated

START = Choice().put("threads", 2).put("draft", "off")
FAST = START.put("threads", 1)
MATRIX = Matrix(PLAN, (Dial("threads", (2, 1)), Dial("draft", ("off", "ngram:8"))), START, 90.0)
GAIN = Ratio(1.4, 1.3, 1.6, 7)
OUTCOME = Outcome(
    best=FAST, gain=GAIN, confirmed=True, mattered=(Gain("threads", 1, GAIN),),
    failures=(Failure("draft", "ngram:8", "it\nhung"),), trials=40, seconds=80.4,
    before=Interval(0.7, 0.6, 0.8, 7), after=Interval(0.5, 0.45, 0.55, 7),
)  # fmt: skip
RESULT = Result(Task("target"), MATRIX, PLAN, dataclasses.replace(PLAN, threads=1), {"threads": 1}, OUTCOME, ENTRY)


def tried(choice: Choice, stage: str, seconds: float | None, failure: str | None = None) -> Tried:
    return Tried(Trial(choice, stage, seconds, failure), dict(choice.beside(START)), 1.0)


def test_a_race_is_one_row_with_the_fastest_first_and_failures_at_the_end() -> None:
    err = io.StringIO()
    view = TuneView(Terminal(io.StringIO(), io.StringIO(), err, {}), quiet=False)
    view.show(MATRIX)
    for event in (
        tried(START, "warm-up", 0.7),
        tried(START, "threads", 0.7),
        tried(FAST, "threads", 0.5),
        tried(FAST, "threads", 0.52),
        tried(START.put("draft", "ngram:8"), "draft", None, "it hung"),
        tried(FAST, "confirm", 0.5),
    ):
        view.show(event)
    view.clear()
    assert err.getvalue().splitlines() == [
        "warm-up: as planned 0.700 s (1)",
        "threads: 1 0.510 s (2), 2 0.700 s (1)",
        "draft: ngram:8 failed: it hung",
        "confirm: threads 1 0.500 s (1)",
    ]


def test_on_a_terminal_the_trial_of_the_moment_moves_below() -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Tty()
    view = TuneView(Terminal(io.StringIO(), io.StringIO(), err, {}), quiet=False)
    view.show(MATRIX)
    view.show(tried(FAST, "threads", 0.5))
    assert err.getvalue().endswith("1 of 90 s, threads: 1: 0.500 s")


def test_the_matrix_is_the_values_and_the_time() -> None:
    lines = matrix_lines(MATRIX)
    assert lines[0] == "target: in 90 s to try, the planned value first:"
    assert [line.strip() for line in lines[1:]] == ["threads: 2, 1", "draft: off, ngram:8"]
    assert result_lines(dataclasses.replace(RESULT, outcome=None, entry=None), "f") == lines


def test_a_result_says_what_changed_how_much_and_what_mattered() -> None:
    assert result_lines(RESULT, "tuned.toml") == [
        "target: 1.40 times as fast (1.30 to 1.60), faster than the plan: threads 1",
        f"  before {40 * '#'} 0.700 s (0.600 to 0.800)",
        f"  after  {29 * '#' + 11 * ' '} 0.500 s (0.450 to 0.550)",
        "  mattered: threads 1: 1.40 (1.30 to 1.60)",
        "  failed: draft ngram:8: it hung",
        "  40 trials in 80 s",
        "remembered in tuned.toml: run, chat and plan use it",
    ]


def test_nothing_found_is_said_as_such() -> None:
    nothing = dataclasses.replace(OUTCOME, best=START, gain=None, mattered=(), failures=())
    lines = result_lines(dataclasses.replace(RESULT, changed={}, outcome=nothing), "f")
    assert lines[0] == "target: nothing tried is distinguishable from the plan: it stays as it is"
    assert lines[-1] == "remembered in f"


def test_what_was_not_confirmed_is_not_remembered_unless_it_was_broken_off() -> None:
    unsure = dataclasses.replace(RESULT, outcome=dataclasses.replace(OUTCOME, gain=None, confirmed=False), entry=None)
    assert "not confirmed in the time, so nothing is remembered" in result_lines(unsure, "f")[0]
    cut = result_lines(dataclasses.replace(unsure, interrupted=True, entry=ENTRY), "f")
    assert cut[0] == "target: looks best, not confirmed in the time: threads 1"
    assert cut[-2].endswith(", interrupted")


def test_bandwidth_and_energy_are_told_where_they_are_known() -> None:
    spent = {"spent_before": Spent(0.5, 2.0, "the battery's drain"), "spent_after": Spent(0.7, 1.5, "the battery's drain")}
    lines = result_lines(dataclasses.replace(RESULT, **spent), "f")
    assert "  share of the measured bandwidth: 0.50, then 0.70" in lines
    assert "  joules per token, by the battery's drain: 2.00, then 1.50" in lines
    unchanged = result_lines(dataclasses.replace(RESULT, changed={}, **spent), "f")
    assert "  share of the measured bandwidth: 0.50" in unchanged
    assert not any("joules" in line or "share of" in line for line in result_lines(RESULT, "f"))
    found = json.loads(result_json(dataclasses.replace(RESULT, **spent), "f"))
    assert (found["spent_before"]["bandwidth_share"], found["spent_after"]["joules_per_token"]) == (0.5, 1.5)


def test_few_pairs_are_told_without_an_interval() -> None:
    few = dataclasses.replace(OUTCOME, mattered=(Gain("threads", 1, Ratio(1.42, 1.42, 1.42, 1)),))
    assert "  mattered: threads 1: 1.42 in 1 pair" in result_lines(dataclasses.replace(RESULT, outcome=few), "f")


def test_what_was_broken_off_too_early_is_not_remembered_and_that_is_said() -> None:
    early = dataclasses.replace(OUTCOME, best=START, gain=None, confirmed=False, mattered=(), failures=())
    lines = result_lines(dataclasses.replace(RESULT, changed={}, outcome=early, entry=None, interrupted=True), "f")
    assert lines[0].startswith(
        "target: interrupted before several rounds had told anything from the plan, so nothing is remembered"
    )
    assert not any("remembered in" in line for line in lines)


def test_another_text_and_a_draft_judged_by_our_sentences_are_said() -> None:
    drafted = dataclasses.replace(RESULT, changed={"draft": "ngram:8"}, drifted=True)
    lines = "\n".join(result_lines(drafted, "f"))
    assert "greedy answers differ from those of the plan" in lines
    assert "--prompts measures with your own" in lines


def test_json_has_the_plans_the_gain_and_the_trials() -> None:
    found = json.loads(result_json(RESULT, "tuned.toml"))
    assert found["before"]["threads"] == 2
    assert found["after"]["threads"] == 1
    assert found["changed"] == {"threads": 1}
    assert found["saved"] == "tuned.toml"
    assert found["matrix"] == {"threads": [2, 1], "draft": ["off", "ngram:8"]}
    assert found["outcome"]["gain"] == {"median": 1.4, "low": 1.3, "high": 1.6, "pairs": 7}
    assert found["outcome"]["failures"] == [{"dial": "draft", "value": "ngram:8", "why": "it\nhung"}]
    assert json.loads(result_json(dataclasses.replace(RESULT, outcome=None, entry=None), "f"))["outcome"] is None


def test_what_is_remembered_is_listed_with_why_it_is_not_used() -> None:
    lines = list_lines([(ENTRY, None), (ENTRY, "llama-cpp-python was another")])
    assert lines[0].startswith("smollm2-135m 2026-12-01 CPU turn 1.50 times as fast: threads 1, draft ngram")
    assert lines[2].strip() == "not used here: llama-cpp-python was another"
    (found,) = json.loads(list_json([(ENTRY, "old")]))["tuned"]
    assert (found["identity"], found["not_used"]) == ("ab12", "old")


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("2m", 120), ("1.5min", 90), (" 5 m", 300)])
def test_a_budget_is_seconds_or_minutes(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "5h", "soon", "100000000", "1e9"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        budget_seconds(text)


def test_what_was_calibrated_is_told_with_what_was_not() -> None:
    found = Calibration("CPU", 2, {"Q4_1": 17.5e9, "F16": 28e9}, 25e-6)
    fits = Fit(found, ("the speed of the cache: too small",), 0.07), Fit(None, ("all of it: busy",))
    result = dataclasses.replace(RESULT, calibrations=tuple(Learned("CPU", 2, fit) for fit in fits))
    lines = result_lines(result, "tuned.toml")
    assert (
        "  predictions are calibrated for CPU, 2 threads, at most 7% off in these runs: F16 28.0 GB/s, Q4_1 17.5 GB/s, "
        "25 us a layer" in lines
    )
    assert "    left out: the speed of the cache: too small" in lines
    assert lines[lines.index("  CPU, 2 threads: predictions are not calibrated") + 1] == "    all of it: busy"
    assert json.loads(result_json(result, ""))["calibrations"][0]["fit"]["calibration"]["decode"]["F16"] == 28e9


def test_calibrations_are_listed_first_with_why_one_is_not_used() -> None:
    entry = Calibrated("1", "x", (), "2026-12-01", Calibration("Vulkan0", None, {"F16": 70e9}, 65e-6))
    lines = list_lines([], [(entry, None), (entry, "another driver")])
    assert lines == [
        "calibration 2026-12-01 Vulkan0: F16 70.0 GB/s, 65 us a layer",
        "calibration 2026-12-01 Vulkan0: F16 70.0 GB/s, 65 us a layer",
        "not used here: another driver",
    ]

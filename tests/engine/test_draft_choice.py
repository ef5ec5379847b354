"""`bench --prompts` on real workers: which arms answer which prompts, and that the next run begins with what was learned."""

import dataclasses
from pathlib import Path

import pytest

from tests import tiny_models
from tests.engine.test_tune_story import FAKE, WISHES, Workers, finished, world
from tokencli.app.drafts import Report, Task, compare_drafts
from tokencli.app.opened import opened
from tokencli.app.pace import known_pace
from tokencli.core import Note
from tokencli.engine.client import Engine
from tokencli.errors import EngineError, Interrupted, UsageError
from tokencli.tune.drafts import Sample


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    target, draft = (str(tiny_models.write(tmp_path / f"{name}.gguf", weight_type="Q8_0")) for name in ("target", "draft"))
    return target, draft


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "code.txt").write_text("def a\n---\ndef b\n---\ndef c")
    (folder / "mail.txt").write_text("dear sir\n---\ndear madam")
    return folder


def compared(task: Task, folder: Path, workers: Workers) -> tuple[Report, list[object]]:
    return finished(compare_drafts(task, world(folder, workers)))  # type: ignore[return-value]


def test_every_arm_chooses_and_only_the_winners_are_held_out(tmp_path: Path, models: tuple[str, str], prompts: Path) -> None:
    workers = Workers()
    wishes = dataclasses.replace(WISHES, draft=models[1], draft_tokens=2)  # fixed: what adapts may choose not to draft
    task = Task(models[0], prompts, wishes, tokens=8, rounds=2)
    report, _ = compared(task, tmp_path, workers)
    assert workers.alive == 0
    assert report.arms == ("off", "lookup", "model")
    choosing = [(each.kind, each.prompt) for each in report.samples if not each.held_out]
    assert sorted(set(choosing)) == [("code", 0), ("code", 2), ("mail", 3)]
    assert len(choosing) == 3 * 3
    held = [each for each in report.samples if each.held_out]
    assert {(each.kind, each.prompt, each.round) for each in held} == {
        ("code", 1, 0),
        ("code", 1, 1),
        ("mail", 4, 0),
        ("mail", 4, 1),
    }
    assert all(each.drafted == 0 for each in report.samples if each.arm == "off")
    assert any(each.drafted for each in report.samples if each.arm == "model")
    assert [each.kind for each in report.advice] == ["code", "mail", None]


def test_the_next_run_begins_with_what_was_learned(tmp_path: Path, models: tuple[str, str], prompts: Path) -> None:
    here = world(tmp_path, Workers())
    for draft, arm in ((models[1], "model"), ("ngram", "lookup")):
        wishes = dataclasses.replace(WISHES, draft=draft)
        report, _ = finished(compare_drafts(Task(models[0], prompts, wishes, tokens=8, rounds=1), here))
        assert arm in report.kept  # type: ignore[attr-defined]
        result, _ = finished(opened(models[0], wishes, here))
        with result.engine:  # type: ignore[attr-defined]
            assert known_pace(result.plan, here) is not None  # type: ignore[attr-defined]


def test_a_depth_that_was_fixed_teaches_nothing(tmp_path: Path, models: tuple[str, str], prompts: Path) -> None:
    wishes = dataclasses.replace(WISHES, draft="ngram", draft_tokens=2)
    report, _ = compared(Task(models[0], prompts, wishes, tokens=8, rounds=1), tmp_path, Workers())
    assert report.kept == ()


def test_an_interruption_keeps_what_was_measured_and_leaves_no_worker(
    tmp_path: Path, models: tuple[str, str], prompts: Path
) -> None:
    workers = Workers()
    steps = compare_drafts(Task(models[0], prompts, WISHES, tokens=8), world(tmp_path, workers))
    assert any(isinstance(event, Sample) for event in steps)
    with pytest.raises(StopIteration) as stop:
        steps.throw(Interrupted("interrupted"))
    assert stop.value.value.interrupted
    assert len(stop.value.value.samples) >= 1
    assert workers.alive == 0


def test_prompts_that_do_not_fit_are_said(tmp_path: Path, models: tuple[str, str], prompts: Path) -> None:
    (prompts / "long.txt").write_text("x " * 2000)
    _, events = compared(Task(models[0], prompts, WISHES, tokens=8, rounds=1), tmp_path, Workers())
    assert any(isinstance(event, Note) and event.text.startswith("1 prompts do not fit") for event in events)
    with pytest.raises(UsageError, match="no prompt of"):
        compared(Task(models[0], prompts / "long.txt", WISHES, tokens=8), tmp_path, Workers())


def test_where_no_draft_can_be_measured_that_is_an_error(tmp_path: Path, models: tuple[str, str], prompts: Path) -> None:
    crashing = Workers(after_the_first=lambda: Engine(command=[*FAKE, "crash-always"]))
    with pytest.raises(EngineError, match="SIGSEGV"):
        compared(Task(models[0], prompts, WISHES, tokens=8), tmp_path, crashing)
    assert crashing.alive == 0

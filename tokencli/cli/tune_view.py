"""What a person or a program sees of `tune`: rows as trials come, the result, what is remembered. Renders, decides nothing."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from tokencli.app.calibrated import CALIBRATION
from tokencli.app.calibrating import Learned
from tokencli.app.tune import Matrix, Result, Tried
from tokencli.cli.bench_view import verdict
from tokencli.cli.terminal import Terminal
from tokencli.cli.views import Aside, Progress, one_line, plan_json
from tokencli.core import Calibration
from tokencli.tune.intervals import Interval, Ratio
from tokencli.tune.search import Outcome
from tokencli.world.calibrated import Calibrated
from tokencli.world.tuned import Entry

_BAR = 40


class TuneView:
    """A row for each race, when it is over: the values and the median seconds of each. Below it a line that moves."""

    def __init__(self, terminal: Terminal, *, quiet: bool) -> None:
        self._progress = Progress(terminal, quiet=quiet)
        self._aside = Aside(terminal, quiet=quiet)
        self._matrix: Matrix | None = None
        self._stage = ""
        self._row: dict[str, list[float]] = {}
        self._failed: dict[str, str] = {}

    def show(self, event: Any) -> None:
        match event:
            case Matrix():
                self._matrix = event
            case Tried():
                self._add(event)
            case _:
                self._progress.show(event)

    def clear(self) -> None:
        self._end_row()
        self._progress.clear()

    def _add(self, event: Tried) -> None:
        trial = event.trial
        if trial.stage != self._stage:
            self._end_row()
            self._stage = trial.stage
        dialled = dict(trial.choice.values).get(trial.stage)
        name = str(dialled) if dialled is not None else changes(event.changed)
        if trial.seconds is None:
            self._failed[name] = trial.failure or ""
        else:
            self._row.setdefault(name, []).append(trial.seconds)
        budget = self._matrix.budget if self._matrix else 0.0
        shown = f"{trial.seconds:.3f} s" if trial.seconds is not None else "failed"
        self._progress.tell(f"{event.seconds:.0f} of {budget:.0f} s, {trial.stage}: {name}: {shown}")

    def _end_row(self) -> None:
        if not self._row and not self._failed:
            return
        ranked = sorted(self._row, key=lambda name: statistics.median(self._row[name]))
        row = [f"{name} {statistics.median(self._row[name]):.3f} s ({len(self._row[name])})" for name in ranked]
        row += [f"{name} failed: {why}" for name, why in self._failed.items()]
        self._lines([f"{self._stage}: {', '.join(row)}"])
        self._row, self._failed = {}, {}

    def _lines(self, lines: Iterable[str]) -> None:
        self._progress.clear()
        for line in lines:
            self._aside.line(line)


def matrix_lines(matrix: Matrix) -> list[str]:
    """The dials and their values, the planned one first, and the time."""
    lines = [f"{dial.name:>26}: {', '.join(str(value) for value in dial.values)}" for dial in matrix.dials]
    return [f"{matrix.plan.model.name}: in {minutes(matrix.budget)} to try, the planned value first:", *lines]


def result_lines(result: Result, file: str) -> list[str]:
    outcome = result.outcome
    if outcome is None:
        return matrix_lines(result.matrix)
    name = result.before.model.name
    if not result.changed:
        lines = [f"{name}: {_nothing(result, outcome)}: it stays as it is"]
    elif outcome.gain:
        gain = f"{outcome.gain.median:.2f} times as fast ({_span(outcome.gain)})"  # of a duel: there are enough pairs
        lines = [f"{name}: {gain}, {verdict(outcome.gain.low, outcome.gain.high)} than the plan: {changes(result.changed)}"]
        lines += _chart(outcome.before, outcome.after)
    else:
        more = "" if result.interrupted else ", so nothing is remembered: a longer --budget will tell"
        lines = [f"{name}: looks best, not confirmed in the time{more}: {changes(result.changed)}"]
    lines += [f"  mattered: {each.dial} {each.value}: {_times(each.ratio)}" for each in outcome.mattered]
    lines += _spent_lines(result)
    lines += [f"  failed: {each.dial} {each.value}: {one_line(each.why)}" for each in outcome.failures]
    if result.drifted:
        lines.append("  greedy answers differ from those of the plan: other sums in the last bits, or a fault of a device")
    lines.append(f"  {outcome.trials} trials in {outcome.seconds:.0f} s{', interrupted' if result.interrupted else ''}")
    if "draft" in result.changed and not result.task.prompts:
        lines.append("  the draft was judged by made-up sentences: --prompts measures with your own")
    lines += [f"  {line}" for each in result.calibrations for line in _learned_lines(each)]
    if result.entry:
        lines.append(f"remembered in {file}{': run, chat and plan use it' if result.changed else ''}")
    return lines


def _learned_lines(learned: Learned) -> list[str]:
    fit, place = learned.fit, where(learned.device, learned.threads)
    if not fit.calibration:
        return [f"{place}: predictions are not calibrated", *(f"  {each}" for each in fit.refused)]
    met = f", at most {fit.error:.0%} off in these runs" if fit.error is not None else ""
    lines = [f"predictions are calibrated for {place}{met}: {speeds(fit.calibration)}"]
    return lines + [f"  left out: {each}" for each in fit.refused]


def where(device: str, threads: int | None) -> str:
    return device if threads is None else f"{device}, {threads} thread{'s' if threads > 1 else ''}"


def speeds(known: Calibration) -> str:
    """Decode by tensor type, and the cost of a layer."""
    fastest = sorted(known.decode.items(), key=lambda each: -each[1])
    return f"{', '.join(f'{name} {speed / 1e9:.1f} GB/s' for name, speed in fastest)}, {known.layer_seconds * 1e6:.0f} us a layer"


def result_json(result: Result, file: str) -> str:
    outcome = result.outcome
    value: dict[str, Any] = {
        "goal": result.task.goal,
        "matrix": {dial.name: dial.values for dial in result.matrix.dials},
        "budget_seconds": result.task.budget,
        "before": plan_json(result.before),
        "after": plan_json(result.after),
        "changed": result.changed,
        "drifted": result.drifted,
        "interrupted": result.interrupted,
        "saved": file if result.entry else None,
        "calibrations": [dataclasses.asdict(each) for each in result.calibrations],
        "spent_before": dataclasses.asdict(result.spent_before),
        "spent_after": dataclasses.asdict(result.spent_after),
        "outcome": None,
    }
    if outcome:
        fields = dataclasses.asdict(outcome)
        value["outcome"] = {key: each for key, each in fields.items() if key not in ("best", "told")}
    return json.dumps(value, ensure_ascii=False)


def list_lines(
    entries: Iterable[tuple[Entry, str | None]], calibrations: Iterable[tuple[Calibrated, str | None]] = ()
) -> list[str]:
    lines = []
    for each, stale in calibrations:
        place = where(each.calibration.device, each.calibration.threads)
        lines.append(one_line(f"{CALIBRATION}  {each.date}  {place}: {speeds(each.calibration)}"))
        if stale:
            lines.append(one_line(f"  not used here: {stale}"))
    for entry, stale in entries:
        gain = f"{entry.gain[0]:.2f} times as fast" if entry.gain else ("not confirmed" if entry.settings else "as planned")
        values = changes({**entry.settings, **entry.environment})
        lines.append(one_line(f"{entry.model}  {entry.date}  {entry.device}  {entry.goal}  {gain}: {values}"))
        if stale:
            lines.append(one_line(f"  not used here: {stale}"))
    return lines


def list_json(entries: Iterable[tuple[Entry, str | None]], calibrations: Iterable[tuple[Calibrated, str | None]] = ()) -> str:
    both: dict[str, Iterable[tuple[Any, str | None]]] = {"tuned": entries, "calibrated": calibrations}
    found = {key: [{**dataclasses.asdict(each), "not_used": stale} for each, stale in pairs] for key, pairs in both.items()}
    return json.dumps(found, ensure_ascii=False)


def changes(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "as planned"


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _chart(before: Interval | None, after: Interval | None) -> list[str]:
    """A bar each, as long as it takes. Of plain characters, so that it needs no terminal and no colours."""
    found = [(name, each) for name, each in (("before", before), ("after", after)) if each]
    longest = max((each.median for _, each in found), default=0.0)
    bars = ((name, each, "#" * max(round(_BAR * each.median / longest), 1)) for name, each in found if longest)
    return [f"  {name:<7}{bar:<{_BAR}} {_seconds(each)}" for name, each, bar in bars]


def _spent_lines(result: Result) -> list[str]:
    """What is known of the memory and the energy; one value where nothing was changed."""
    spent = (result.spent_before, result.spent_after) if result.changed else (result.spent_before,)
    shares, joules = [each.bandwidth_share for each in spent], [each.joules_per_token for each in spent]
    lines = []
    if None not in shares:
        lines.append(f"  share of the measured bandwidth: {', then '.join(f'{each:.2f}' for each in shares)}")
    if None not in joules:
        lines.append(f"  joules per token, by {spent[0].energy}: {', then '.join(f'{each:.2f}' for each in joules)}")
    return lines


def _nothing(result: Result, outcome: Outcome) -> str:
    if outcome.confirmed:
        return "nothing tried is distinguishable from the plan"
    if result.interrupted:
        return "interrupted before several rounds had told anything from the plan, so nothing is remembered"
    return "nothing was found in the time"


def _times(gain: Ratio) -> str:
    """With the interval where there are enough pairs for one."""
    return (
        f"{gain.median:.2f} ({_span(gain)})" if gain.holds else f"{gain.median:.2f} in {gain.pairs} pair{'s' * (gain.pairs > 1)}"
    )


def _span(found: Ratio | Interval, digits: int = 2) -> str:
    return f"{found.low:.{digits}f} to {found.high:.{digits}f}"


def _seconds(found: Interval | None) -> str:
    if found is None:
        return "-"
    return f"{found.median:.3f} s ({_span(found, 3)})" if found.holds else f"{found.median:.3f} s"

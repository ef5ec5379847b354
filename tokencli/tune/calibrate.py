"""What runs on one device teach of its speed: bytes per second by tensor type, the cost of a layer, that of the cache. Pure.

Weighted least squares over the seconds of a token; what the runs do not determine is refused by name, the impossible discarded.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokencli.core import Calibration

LAYER, CACHE = "the cost of a layer", "the speed of the cache"
_SMALL = 0.02  # of a run's bytes: norms and biases, which go with its largest type
_TOLD = 0.5  # standard error of a constant over its value: more says nothing
_DETERMINED = 1e-6
_PASSES, _DISBELIEF = 20, 4
_DISTURBED, _CONTRADICTION = 0.35, 0.3  # of a run above and below what all say: models alone differ by some 20 %
_ABOVE = 1.1  # times the nominal bandwidth: data sheets and clocks are not that exact


@dataclass(frozen=True, slots=True)
class Run:
    """One model as measured on one device: what a token reads there and how long it takes, `spread` its relative error.

    `weights`: bytes by tensor type; `cache`: bytes of keys and values; `layers`: blocks computed. The difference of two runs is
    one, too, so that either may be nothing. `prompt_seconds` for so many tokens, which read `prompt_weights`; None where it was
    not measured.
    """

    name: str
    weights: Mapping[str, float]
    layers: int
    seconds: float
    cache: float = 0.0
    spread: float = 0.05
    prompt_tokens: int = 0
    prompt_weights: float = 0.0
    prompt_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """`calibration` None where no tensor type has a speed; `refused`: constants and runs left out, and why. `error`: how far the
    constants are from the run that they meet least, relative.
    """

    calibration: Calibration | None
    refused: tuple[str, ...] = ()
    error: float | None = None


def fit(runs: Sequence[Run], device: str, threads: int | None, layer_seconds: float, nominal: float | None = None) -> Fit:
    """The constants that the runs determine. `layer_seconds`: of a layer where they do not tell; `nominal`: bytes per second of
    the data sheet, where known: what is read faster is impossible.
    """
    refused: list[str] = []
    kept = [_without_small(run) for run in runs if _is_possible(run, refused)]
    found = _Solving(kept, layer_seconds, refused).solve()
    decode = {name: 1 / seconds for name, seconds in found.items() if name not in (LAYER, CACHE)}
    for name in [name for name, speed in decode.items() if nominal and speed > _ABOVE * nominal]:
        speed = decode.pop(name)
        refused.append(f"the speed of {name}: {_giga(speed)}, more than the {_giga(nominal or 0.0)} of the data sheet")
    if not decode:
        return Fit(None, tuple(refused))
    calibration = Calibration(
        device=device,
        threads=threads,
        decode=decode,
        layer_seconds=found.get(LAYER, layer_seconds),
        cache=1 / found[CACHE] if CACHE in found else None,
        prefill=dict(_prefill(kept, found.get(LAYER, layer_seconds), decode, refused)),
    )
    return _checked(kept, calibration, refused)


def seconds_of(run: Run, calibration: Calibration) -> float | None:
    """What the constants say of a run's token, None where one of its types has none."""
    speeds = calibration.decode
    if not set(run.weights) <= set(speeds):
        return None
    weights = sum(size / speeds[name] for name, size in run.weights.items())
    return weights + run.layers * calibration.layer_seconds + run.cache / (calibration.cache or max(speeds.values()))


@dataclass(slots=True)
class _Solving:
    """One system of equations, a row for each run, solved again without the unknown that it says least of, until none is left
    that it does not tell.
    """

    runs: list[Run]
    layer_seconds: float
    refused: list[str]

    def solve(self) -> dict[str, float]:
        """Seconds per byte by tensor type and of the cache, and seconds of a layer: those that are determined."""
        if not self.runs:
            return {}
        free = {LAYER: self.layer_seconds}
        if any(run.cache for run in self.runs):
            free[CACHE] = min(run.seconds / (sum(run.weights.values()) + run.cache) for run in self.runs)
        fixed: dict[str, float] = {}
        while self.runs:
            types = sorted({name for run in self.runs for name in run.weights})
            unknowns = [*types, *(name for name in (LAYER, CACHE) if name in free)]
            found, wrong = self._once(unknowns, fixed)
            worst = next((name for name in (CACHE, LAYER, *types) if name in wrong), None)
            if worst is None:
                return found
            self.refused.append(f"{worst}: {wrong[worst]}")
            if worst in free:
                fixed[worst] = free.pop(worst)
            else:
                self.runs = [run for run in self.runs if worst not in run.weights]
        return {}

    def _once(self, unknowns: Sequence[str], fixed: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
        """The solution, and what is wrong with which unknown. Other work only ever slows: a run far above counts for less."""
        import numpy as np

        amounts = np.array([[_amount(run, name) for name in unknowns] for run in self.runs])
        known = np.array([sum(_amount(run, name) * value for name, value in fixed.items()) for run in self.runs])
        seconds = np.array([run.seconds for run in self.runs])
        noise = seconds * np.array([run.spread for run in self.runs])
        far = np.ones(len(self.runs))
        for _ in range(_PASSES):
            rows = amounts / (noise * far)[:, None]
            scale = np.linalg.norm(rows, axis=0)
            scale[scale == 0] = 1.0
            inverse = np.linalg.pinv(rows / scale, rcond=_DETERMINED)
            found = inverse @ ((seconds - known) / (noise * far)) / scale
            above = seconds / np.maximum(known + amounts @ found, _DETERMINED * seconds) - 1
            far = np.maximum(1.0, above / _DISTURBED) ** _DISBELIEF
        errors = np.linalg.norm(inverse, axis=1) / scale
        _, sizes, axes = np.linalg.svd(rows / scale)
        sizes = np.concatenate([sizes, np.zeros(len(unknowns) - len(sizes))]) if len(sizes) < len(unknowns) else sizes
        blind = axes[sizes <= _DETERMINED * sizes[0]]
        wrong = {}
        for index, name in enumerate(unknowns):
            if len(blind) and np.abs(blind[:, index]).max() > _DETERMINED:
                wrong[name] = "these runs do not tell it from the rest"
            elif not math.isfinite(found[index]) or found[index] <= 0:
                wrong[name] = f"the runs would say {found[index]:.2g} s, which is impossible"
            elif errors[index] > _TOLD * found[index]:
                wrong[name] = f"too small in these runs to be told: {found[index]:.2g} s, give or take {errors[index]:.2g}"
        return dict(zip(unknowns, map(float, found), strict=True)), wrong


def _amount(run: Run, unknown: str) -> float:
    if unknown == LAYER:
        return run.layers
    return run.cache if unknown == CACHE else run.weights.get(unknown, 0.0)


def _is_possible(run: Run, refused: list[str]) -> bool:
    for value in (run.seconds, run.spread):
        if not math.isfinite(value) or value <= 0:
            refused.append(f"the run of {run.name}: {value} is no time")
            return False
    return bool(run.weights or run.cache)


def _without_small(run: Run) -> Run:
    if not run.weights:
        return run
    total, largest = sum(run.weights.values()), max(run.weights, key=lambda name: run.weights[name])
    weights = {name: size for name, size in run.weights.items() if size >= _SMALL * total}
    weights[largest] += total - sum(weights.values())
    return dataclasses.replace(run, weights=weights)


def _prefill(runs: Sequence[Run], layer: float, types: Mapping[str, float], refused: list[str]) -> Iterator[tuple[str, float]]:
    """From runs of one type only: bytes of weights per second times tokens."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.prompt_seconds is not None and len(run.weights) == 1:
            left = run.prompt_seconds - run.layers * layer
            speed = run.prompt_tokens * run.prompt_weights / left if left else math.nan
            found.setdefault(next(iter(run.weights)), []).append(speed)
    for name, speeds in found.items():
        speed = statistics.median(speeds)
        if name in types and math.isfinite(speed) and speed > 0:
            yield name, speed
        elif name in types:
            refused.append(f"the speed of {name} in a prompt: {speed:.2g} bytes times tokens a second is impossible")


def _checked(runs: Sequence[Run], calibration: Calibration, refused: list[str]) -> Fit:
    """With its error; without a calibration where the runs contradict each other. Those that other work slowed are told."""
    meant = [(run, run.seconds / seconds - 1) for run in runs if (seconds := seconds_of(run, calibration))]
    slowed = [(run, above) for run, above in meant if above > _DISTURBED]
    error = max((abs(above) for _, above in meant if above <= _DISTURBED), default=None)
    refused += [f"the run of {run.name}: {above:.0%} slower than the others say" for run, above in slowed]
    if len(slowed) > len(meant) / 3 or (error or 0.0) > _CONTRADICTION:
        refused.append("all of it: these runs contradict each other, as they do beside other work")
        return Fit(None, tuple(refused), error)
    return Fit(calibration, tuple(refused), error)


def _giga(speed: float) -> str:
    return f"{speed / 1e9:.0f} GB/s"

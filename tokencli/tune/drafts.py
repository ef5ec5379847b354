"""Which draft pays for which kind of prompt: chosen on one half of the prompts, held against no draft on the other. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokencli.tune.intervals import Ratio, ratio

OFF = "off"


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: seconds per token after the first, and what was guessed. `held_out`: not of the half that chooses.

    Answers to the same prompt in the same round are a pair.
    """

    kind: str
    prompt: int
    round: int
    arm: str
    held_out: bool
    seconds_per_token: float
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Advice:
    """For a kind of prompt, or for all where `kind` is None. `chosen` by one half of the prompts; `gain` over no draft and
    `acceptance` are of the other half, None where nothing was measured there. `recommended`: what the interval allows.
    """

    kind: str | None
    prompts: int  # held out
    chosen: str
    gain: Ratio | None
    acceptance: float | None
    recommended: str


def fastest(samples: Iterable[Sample], kind: str | None = None) -> str | None:
    """The arm with the least time per token over the half that chooses, by totals; None where that half is empty."""
    costs: dict[str, list[float]] = {}
    for each in samples:
        if not each.held_out and kind in (None, each.kind):
            costs.setdefault(each.arm, []).append(each.seconds_per_token)
    return min(costs, key=lambda arm: sum(costs[arm]) / len(costs[arm]), default=None)


def advice(samples: Sequence[Sample]) -> tuple[Advice, ...]:
    """By kind, in the order of the samples; that for all comes last."""
    kinds = list(dict.fromkeys(each.kind for each in samples))
    return tuple(found for kind in (*kinds, None) if (found := _advice(samples, kind)))


def _advice(samples: Sequence[Sample], kind: str | None) -> Advice | None:
    chosen = fastest(samples, kind)
    if chosen is None:
        return None
    held = [each for each in samples if each.held_out and kind in (None, each.kind)]
    gain = _gain(held, chosen) if chosen != OFF else None
    mine = [each for each in held if each.arm == chosen]
    drafted = sum(each.drafted for each in mine)
    return Advice(
        kind=kind,
        prompts=len({each.prompt for each in held}),
        chosen=chosen,
        gain=gain,
        acceptance=sum(each.accepted for each in mine) / drafted if drafted else None,
        recommended=chosen if gain and gain.holds and gain.low > 1 else OFF,
    )


def _gain(held: Sequence[Sample], arm: str) -> Ratio | None:
    by_arm = [{(each.prompt, each.round): each.seconds_per_token for each in held if each.arm == name} for name in (OFF, arm)]
    shared = [pair for pair in by_arm[0] if pair in by_arm[1]]
    return ratio([by_arm[0][pair] for pair in shared], [by_arm[1][pair] for pair in shared]) if shared else None

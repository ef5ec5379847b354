"""What to try after a plan that failed: less of what it failed for, each step once. Decides, starts nothing.

Memory that was refused: the draft, the micro-batch, experts, layers, then context, as long as there is something to give up.
A crash: the same again, then what crashes least; the third ends it.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tokencli.core import Plan
from tokencli.errors import DecodeFailed, EngineCrashed, EngineTimeout, NoRoomToCompute, OutOfMemory, TokencliError
from tokencli.plan.choose import ALL, Wishes

FAILURES = (EngineCrashed, EngineTimeout, DecodeFailed, OutOfMemory)  # what another plan may mend

_CRASHES = 3
_SMALL_UBATCH = 128
_SMALLEST_CONTEXT = 512
_OF_MEMORY = (
    "bad_alloc",
    "out of memory",
    "OutOfDeviceMemory",
    "OutOfHostMemory",
    "Cannot allocate memory",
    "failed to allocate",
)


@dataclass(frozen=True, slots=True)
class Step:
    """What to ask for next, in words that follow "again"; no words: the same again."""

    wishes: Wishes
    words: str = ""


class Ladder:
    """The way down from one plan. `experts`: blocks of the model that have any."""

    def __init__(self, experts: int = 0) -> None:
        self._experts = experts
        self._crashes = 0

    def after(self, failure: TokencliError, plan: Plan | None, wishes: Wishes, tokens: int = 0) -> Step | None:
        """The next step after `failure`, None where nothing is left. The answer needs a context of `tokens` and more."""
        if is_of_memory(failure):
            return next(self._smaller(failure, plan, wishes, tokens), None) if plan else _unplanned(wishes)
        self._crashes += 1
        if self._crashes == 1:
            return Step(wishes)
        if self._crashes == _CRASHES:
            return None
        if plan is None:
            return _unplanned(wishes)
        return on_the_cpu(wishes) if plan.gpu_layers else next(_less_context(plan, wishes, tokens), None)

    def _smaller(self, failure: TokencliError, plan: Plan, wishes: Wishes, tokens: int) -> Iterator[Step]:
        """Steps that save memory, the cheapest first."""
        if plan.draft and plan.draft.kind == "model":
            yield Step(dataclasses.replace(wishes, draft="off"), " without the draft model")
        if isinstance(failure, NoRoomToCompute) and plan.ubatch > _SMALL_UBATCH:
            yield Step(dataclasses.replace(wishes, ubatch=_SMALL_UBATCH), f" with a micro-batch of {_SMALL_UBATCH} tokens")
        if plan.gpu_layers and plan.cpu_moe_layers < self._experts:
            yield Step(dataclasses.replace(wishes, cpu_moe=ALL), " with all experts on the CPU")
        if plan.gpu_layers > 1:
            layers = plan.gpu_layers // 2
            yield Step(
                dataclasses.replace(wishes, gpu_layers=layers), f" with {layers} layer{'s' * (layers > 1)} on {plan.device}"
            )
        if plan.gpu_layers:
            yield on_the_cpu(wishes)
        yield from _less_context(plan, wishes, tokens)


def on_the_cpu(wishes: Wishes) -> Step:
    return Step(dataclasses.replace(wishes, gpu_layers=0, cpu_moe=None, device=None), " on the CPU")


def _unplanned(wishes: Wishes) -> Step | None:
    """Where not even a plan came about: a GPU was asked for its sizes, or there is nothing left."""
    return None if asks_for_the_cpu(wishes) else on_the_cpu(wishes)


def is_of_memory(failure: TokencliError) -> bool:
    """Whether memory was refused, as far as can be told: a kill by the system looks like any other."""
    said = "\n".join((failure.what, *failure.log[-5:]))
    return isinstance(failure, OutOfMemory) or (isinstance(failure, EngineCrashed) and any(word in said for word in _OF_MEMORY))


def is_of_a_driver(failure: TokencliError) -> bool:
    """Whether a driver may have done it: a kill comes from outside, and teaches nothing."""
    return "SIGKILL" not in failure.what


def asks_for_the_cpu(wishes: Wishes) -> bool:
    return wishes.gpu_layers == 0 or (wishes.device or "").lower() == "cpu"


def _less_context(plan: Plan, wishes: Wishes, tokens: int) -> Iterator[Step]:
    context = plan.context // 2
    if context >= max(_SMALLEST_CONTEXT, tokens + tokens // 4):
        yield Step(dataclasses.replace(wishes, context=context), f" with a context of {context}")

"""The drafter whose depth and source the controller chooses, round by round, by what rounds took. Pure: the clock comes in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokencli.decode.depth import Choice, Controller, Round
from tokencli.decode.drafters import ModelDrafter, NgramDrafter, Spent

LOOKUP, MODEL = "lookup", "model"


@dataclass(frozen=True, slots=True)
class _Open:
    """A round whose outcome is not known yet: what was proposed behind a text of `length` tokens, and when."""

    choice: Choice
    draft: Sequence[int]
    length: int
    spent: Spent
    asked_at: float
    ended_at: float
    verified: float  # the target's seconds so far


class Adaptive:
    """Proposes by lookup, by a draft model, or nothing. What a round took is seen when the next one is asked for."""

    def __init__(
        self, controller: Controller, model: ModelDrafter | None, now: Callable[[], float], target_seconds: Callable[[], float]
    ) -> None:
        """`target_seconds`: time spent in the target's passes so far."""
        self._controller = controller
        self._lookup = NgramDrafter()
        self._model = model
        self._now = now
        self._target_seconds = target_seconds
        self._open: _Open | None = None
        self._heard: tuple[int, Sequence[int]] | None = None  # what lookup would have guessed, and where

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        asked_at = self._now()
        self._learn(tokens, asked_at)
        self._overhear(tokens)
        repeat = self._lookup.propose(tokens, min(most, self._controller.most))
        backlog = {LOOKUP: 0} if repeat else {}
        if self._model:
            backlog[MODEL] = self._model.behind(tokens)
        choice = self._controller.choose(backlog, most)
        draft, spent = self._draft(choice, tokens, repeat)
        if repeat and choice.source != LOOKUP and self._heard is None:
            self._heard = len(tokens), repeat
        self._open = _Open(choice, draft, len(tokens), spent, asked_at, self._now(), self._target_seconds())
        return draft

    def _draft(self, choice: Choice, tokens: Sequence[int], repeat: Sequence[int]) -> tuple[Sequence[int], Spent]:
        if choice.source == LOOKUP:
            return repeat[: choice.depth], Spent()
        if choice.source == MODEL and self._model:
            goes_on = lambda made, told: self._controller.goes_on(choice, made, told)  # noqa: E731
            draft = self._model.propose(tokens, choice.depth, goes_on, choice.tail)
            return draft, self._model.spent
        return (), Spent()

    def _learn(self, tokens: Sequence[int], now: float) -> None:
        """Tell the controller of the last round, if its outcome is what the text says."""
        done, self._open = self._open, None
        if done is None:
            return
        accepted = len(tokens) - done.length - 1
        stood = list(tokens[done.length : done.length + accepted])
        if not 0 <= accepted <= len(done.draft) or list(done.draft[:accepted]) != stood:
            return  # somebody else wrote on: the end of the reasoning
        verify, spent = self._target_seconds() - done.verified, done.spent
        rest = max(0.0, now - done.asked_at - verify - spent.reading - spent.drafting)
        self._controller.learn(
            Round(
                choice=done.choice,
                made=len(done.draft),
                accepted=accepted,
                verify=verify,
                rest=rest,
                reading=spent.reading,
                read=spent.read,
                draft=spent.drafting,
                steps=spent.steps,
                told=spent.told,
            )
        )

    def _overhear(self, tokens: Sequence[int]) -> None:
        """What lookup would have guessed costs nothing to compare: it is known whether it pays before it is ever used."""
        if self._heard is None:
            return
        start, guesses = self._heard
        came = tokens[start : start + len(guesses)]
        right = next((at for at, token in enumerate(came) if token != guesses[at]), len(came))
        if right < len(came) or len(came) == len(guesses):
            self._controller.overheard(LOOKUP, len(guesses), right)
            self._heard = None

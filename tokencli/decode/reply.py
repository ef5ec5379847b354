"""One reply as it grows: tokens in, shown text out, and the reason why it ended. Pure; checks token by token."""

from collections.abc import Sequence
from typing import Protocol

from tokencli.core import FinishReason, TextKind
from tokencli.decode.text import ReasoningSplitter, StopFilter, Utf8Stream

Parts = list[tuple[TextKind, str]]


class Vocabulary(Protocol):
    """What a reply asks of a model's vocabulary."""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for in shown text; empty for control tokens."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (any of the model's end tokens, not just eos)."""


class Reply:
    """Feeds tokens through UTF-8, stop strings and reasoning tags. `finish` is None while it may go on."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        inside_reasoning: bool = False,
        begun: bool = False,
        past_end: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._past_end = past_end
        self._max_tokens = max_tokens
        self._utf8 = Utf8Stream()
        self._stop = StopFilter(stop)
        self._reasoning = ReasoningSplitter(inside=inside_reasoning, begun=begun)
        self.tokens = 0
        self.reasoning_tokens = 0
        self.finish: FinishReason | None = None

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning.inside

    def add(self, tokens: Sequence[int]) -> Parts:
        """Take the tokens of one emission, up to the first that ends the reply; what is shown because of them."""
        text: list[str] = []
        for token in tokens:
            if self.finish:
                break
            self.tokens += 1
            text.append(self._one(token))
        parts = self._reasoning.feed("".join(text))
        if self._reasoning.inside:
            self.reasoning_tokens += len(tokens)
        return parts

    def end(self, finish: FinishReason) -> Parts:
        """The reply is over, for `finish` unless it ended by itself before: give out all that was held back.

        The beginning of a character that was cut off is no text: it would go back to the model when a chat goes on.
        """
        self.finish = self.finish or finish
        tail = self._utf8.flush() if self.finish == "stop" else ""
        rest = self._stop.feed(tail) + self._stop.flush()
        return _joined(self._reasoning.feed(rest), self._reasoning.flush())

    def _one(self, token: int) -> str:
        if self._vocabulary.is_end(token) and not self._past_end:
            self.finish = "stop"
            return ""
        text = self._stop.feed(self._utf8.feed(self._vocabulary.piece(token)))
        if self._stop.stopped:
            self.finish = "stop"
        elif self._max_tokens is not None and self.tokens >= self._max_tokens:
            self.finish = "length"
        return text


def _joined(*lists: Parts) -> Parts:
    return [part for parts in lists for part in parts]

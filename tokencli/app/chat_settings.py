"""What a chat can be told while it runs: how answers are sampled and where they end. Pure."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tokencli.core import Begun, Message, Request, Sampling, Thinking
from tokencli.errors import UsageError

Overflow = Literal["stop", "drop", "compact"]


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings of every answer of a chat; `template` is the source of a chat template, None for the model's own."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    overflow: Overflow = "stop"
    thinking: Thinking = "on"
    max_thinking: int | None = None
    template: str | None = None
    show_draft: bool = False

    def request(self, messages: tuple[Message, ...], begun: Begun, seed_offset: int) -> Request:
        """`seed_offset` makes another answer to the same messages another one."""
        sampling = dataclasses.replace(self.sampling, seed=(self.sampling.seed + seed_offset) % (1 << 64))
        return Request(
            messages=messages,
            sampling=sampling,
            max_tokens=self.max_tokens,
            stop=self.stop,
            thinking=self.thinking,
            max_thinking=self.max_thinking,
            template=self.template,
            begun=begun,
            reuse=True,
            show_draft=self.show_draft,
        )

    def shown(self) -> dict[str, str]:
        """Every setting that `changed` takes, as it would be typed."""
        return {name: _typed(setting.read(self)) for name, setting in _SETTINGS.items()}

    def changed(self, name: str, value: str) -> "ChatSettings":
        """Raises UsageError with what would be right."""
        setting = _SETTINGS.get(name)
        if setting is None:
            raise UsageError(f"there is no setting {name}", "known settings: " + ", ".join(_SETTINGS))
        try:
            return setting.write(self, setting.parse(value.strip()))
        except ValueError:
            raise UsageError(f"{name} cannot be {value!r}", f"give {setting.right}") from None


@dataclass(frozen=True, slots=True)
class _Setting:
    """`parse` raises ValueError for what is not `right`."""

    name: str
    of_sampling: bool
    parse: Callable[[str], Any]
    right: str

    def read(self, settings: ChatSettings) -> Any:
        return getattr(settings.sampling if self.of_sampling else settings, self.name)

    def write(self, settings: ChatSettings, value: Any) -> ChatSettings:
        if self.of_sampling:
            return dataclasses.replace(settings, sampling=dataclasses.replace(settings.sampling, **{self.name: value}))
        return dataclasses.replace(settings, **{self.name: value})


def _number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return parse


def _or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text in ("none", "") else parse(text)


def _one_of(kind: Any) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in get_args(kind):
            raise ValueError(text)
        return text

    return parse


def _stop(text: str) -> tuple[str, ...]:
    return () if text in ("none", "") else (text,)


_COUNT = _number(int, 1, 1 << 31)
_SETTINGS = {
    "temperature": _Setting("temperature", True, _number(float, 0, 100), "a number from 0 (the most probable token) to 100"),
    "top-k": _Setting("top_k", True, _number(int, 0, 1 << 31), "a whole number; 0 is off"),
    "top-p": _Setting("top_p", True, _number(float, 0, 1), "a number from 0 to 1; 1 is off"),
    "min-p": _Setting("min_p", True, _number(float, 0, 1), "a number from 0 to 1; 0 is off"),
    "seed": _Setting("seed", True, _number(int, 0, (1 << 64) - 1), "a whole number"),
    "max-tokens": _Setting("max_tokens", False, _or_none(_COUNT), "a whole number, or none"),
    "stop": _Setting("stop", False, _stop, "the text to stop before, or none"),
    "overflow": _Setting("overflow", False, _one_of(Overflow), "stop, drop or compact"),
    "thinking": _Setting("thinking", False, _one_of(Thinking), "on, off, low, medium or high"),
    "max-thinking": _Setting("max_thinking", False, _or_none(_COUNT), "a whole number of tokens, or none"),
}


def _typed(value: object) -> str:
    if value is None or value == ():
        return "none"
    return " ".join(value) if isinstance(value, tuple) else str(value)

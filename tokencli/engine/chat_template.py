"""Renders the chat template that a model file carries: Jinja2 in a sandbox, with a time limit. A file's template is
somebody else's program.
"""

import datetime
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokencli.core import Message
from tokencli.errors import BadModelFile

TIME_LIMIT_SECONDS = 2.0
_MOST_REPEATS = 1 << 20
_MOST_POWER = 64


class _TooLong(Exception):
    pass


class _Environment(ImmutableSandboxedEnvironment):
    """The settings that Hugging Face renders chat templates with, and a limit on what one operator may build."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        repeats = operator == "*" and not (isinstance(left, (int, float)) and isinstance(right, (int, float)))
        if repeats and _size(left) * _size(right) > _MOST_REPEATS:
            raise TemplateError("an operator builds too much")
        if operator == "**" and abs(right) > _MOST_POWER:
            raise TemplateError("a power is too large")
        return super().call_binop(context, operator, left, right)


def _size(operand: Any) -> int:
    return abs(operand) if isinstance(operand, int) else len(operand)


def render(template: str, messages: Sequence[Message], bos: str, eos: str) -> str:
    """The prompt text that asks for the assistant's next message. Raises BadModelFile where the template fails.

    A template that refuses a system message (some raise, with the message in their own words) gets it joined to the
    first user message instead.
    """
    plain = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return _render(template, plain, bos, eos)
    except TemplateError as error:
        if plain[0]["role"] != "system" or len(plain) < 2:
            raise _failure(error) from None
    joined = plain[0]["content"] + "\n\n" + plain[1]["content"]
    try:
        return _render(template, [{"role": "user", "content": joined}, *plain[2:]], bos, eos)
    except TemplateError as error:
        raise _failure(error) from None


def _render(template: str, messages: list[dict[str, str]], bos: str, eos: str) -> str:
    """Raises TemplateError for all that can go wrong inside."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
    try:
        with _time_limit(TIME_LIMIT_SECONDS):
            return environment.from_string(template).render(
                messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=True
            )
    except TemplateError:
        raise
    except _TooLong:
        raise TemplateError(f"it ran longer than {TIME_LIMIT_SECONDS:g} s") from None
    except Exception as error:  # the sandboxed program can raise anything
        raise TemplateError(f"{type(error).__name__}: {error}") from None


def _failure(error: TemplateError) -> BadModelFile:
    message = str(error).strip().split("\n")[0]
    return BadModelFile(f"the model's chat template fails: {message}", "take another file of the model")


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises _TooLong inside the block, at the next call of any function: works in every thread and on every system."""
    deadline = time.monotonic() + seconds

    def check(_frame: FrameType, _event: str, _argument: object) -> None:
        if time.monotonic() > deadline:
            raise _TooLong

    sys.setprofile(check)
    try:
        yield
    finally:
        sys.setprofile(None)


def _to_json(value: Any, indent: int | None = None, **_options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)

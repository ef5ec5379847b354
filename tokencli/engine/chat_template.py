"""Renders the chat template that a model file carries: Jinja2 in a sandbox, with a time limit. A file's template is
somebody else's program.
"""

import datetime
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokencli.core import Message
from tokencli.errors import BadModelFile

TIME_LIMIT_SECONDS = 2.0
_MOST_BUILT = 1 << 22


TraceFunction = Callable[[FrameType, str, Any], Any]


class _TooLong(Exception):
    pass


class _Generation(Extension):
    """The tag around what the assistant says, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The settings that Hugging Face renders chat templates with, and a limit on what one operator may build."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _builds(operator, left, right) > _MOST_BUILT:
            raise TemplateError("an operator builds too much")
        return super().call_binop(context, operator, left, right)


def _builds(operator: str, left: Any, right: Any) -> int:
    """How large the result may get: characters, items, or for numbers bits."""
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    match operator:
        case "*" if not numbers:
            return _size(left) * _size(right)
        case "**" if isinstance(left, int) and isinstance(right, int):
            return left.bit_length() * abs(right)
        case "+" if not numbers:
            return _size(left) + _size(right)
        case "%" if isinstance(left, str):
            return max((int(width) for width in re.findall(r"\d{1,18}", left)), default=0)
    return 0


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
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
    try:
        with _time_limit(TIME_LIMIT_SECONDS):
            return environment.from_string(template).render(
                messages=messages, tools=None, documents=None, bos_token=bos, eos_token=eos, add_generation_prompt=True
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
    """Raises _TooLong inside what the block calls, at the next line of it: works in every thread and on every system.

    What it cannot end is one long operation of C, such as a large power: those are limited by size.
    """
    deadline = time.monotonic() + seconds
    before = sys.gettrace()

    def check(_frame: FrameType, _event: str, _argument: object) -> TraceFunction:
        if time.monotonic() > deadline:
            raise _TooLong
        return check

    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)

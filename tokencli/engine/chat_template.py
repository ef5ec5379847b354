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
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokencli.core import Message, Thinking
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


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt's text, and what had to be changed for the template to take the messages."""

    text: str
    notes: tuple[str, ...] = ()


def render(
    template: str, messages: Sequence[Message], bos: str, eos: str, thinking: Thinking = "on", ask: bool = True
) -> Rendered:
    """The prompt text; with `ask`, up to where the assistant's next message begins. Raises BadModelFile where the template fails.

    Some templates refuse a system message, or roles that do not alternate, with the complaint in their own words: then the
    system message is joined to the first user message, and neighbours of one role are joined.
    """
    try:
        switches, notes = thinking_switches(template, thinking)
    except TemplateError as error:
        raise _failure(error) from None
    plain = [{"role": message.role, "content": message.content} for message in messages]
    complaint = None
    for repaired, note in _repairs(plain):
        try:
            text = _render(template, repaired, bos, eos, ask, switches)
        except TemplateError as error:
            complaint = complaint or error
        else:
            return Rendered(text, (*notes, *note))
    assert complaint
    raise _failure(complaint) from None


def thinking_switches(template: str, thinking: Thinking) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The template's arguments for a way of reasoning, by the names that it knows, and a note where it knows none.

    Raises TemplateError where the template cannot be read.
    """
    if thinking == "on":
        return {}, ()
    known = _asked_for(template) & {"enable_thinking", "thinking", "reasoning_effort"}
    toggles = dict.fromkeys(known - {"reasoning_effort"}, thinking != "off")
    if thinking == "off":
        if toggles:
            return toggles, ()
        if known:
            return {"reasoning_effort": "low"}, ("this model cannot leave reasoning out: asked for little of it",)
        return {}, ("this model's template knows no switch for reasoning",)
    if "reasoning_effort" in known:
        return {**toggles, "reasoning_effort": thinking}, ()
    return toggles, ("this model's template knows no levels of reasoning",)


_Messages = list[dict[str, str]]


def _repairs(messages: _Messages) -> Iterator[tuple[_Messages, tuple[str, ...]]]:
    """The messages as they are, and then what a strict template may take instead."""
    yield messages, ()
    joined, merged = _system_joined(messages), _merged(messages)
    no_system = "the model's template knows no system message: it is joined to the first message"
    alternating = "the model's template wants the roles to alternate: neighbours are joined"
    if joined != messages:
        yield joined, (no_system,)
    if merged != messages:
        yield merged, (alternating,)
    if _merged(joined) not in (joined, merged):
        yield _merged(joined), (no_system, alternating)


def _system_joined(messages: _Messages) -> _Messages:
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return messages
    content = messages[0]["content"] + "\n\n" + messages[1]["content"]
    return [{"role": "user", "content": content}, *messages[2:]]


def _merged(messages: _Messages) -> _Messages:
    merged: _Messages = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**message, "content": merged[-1]["content"] + "\n\n" + message["content"]}
        else:
            merged.append(message)
    return merged


@lru_cache(maxsize=8)
def _asked_for(template: str) -> frozenset[str]:
    """The names that a template takes from whoever renders it: not its own, and no fields of messages."""
    with _faults_told(), _time_limit(TIME_LIMIT_SECONDS, each_line=False):
        return frozenset(find_undeclared_variables(_environment().parse(template)))


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    """Many times dearer than to render; most of all with every line looked at, which what compiles does not need."""
    with _faults_told(), _time_limit(TIME_LIMIT_SECONDS, each_line=False):
        return _environment().from_string(template)


def _environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
    return environment


def _render(template: str, messages: _Messages, bos: str, eos: str, ask: bool, switches: dict[str, Any]) -> str:
    """Raises TemplateError for all that can go wrong inside."""
    compiled = _compiled(template)
    with _faults_told(), _time_limit(TIME_LIMIT_SECONDS):
        return compiled.render(
            messages=messages,
            tools=None,
            documents=None,
            bos_token=bos,
            eos_token=eos,
            add_generation_prompt=ask,
            **switches,
        )


@contextmanager
def _faults_told() -> Iterator[None]:
    """Raises TemplateError for all that goes wrong inside."""
    try:
        yield
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
def _time_limit(seconds: float, each_line: bool = True) -> Iterator[None]:
    """Raises _TooLong inside what the block calls, at the next line or call of it: works in every thread and on every system.

    What it cannot end is one long operation of C, such as a large power: those are limited by size.
    """
    deadline = time.monotonic() + seconds
    before = sys.gettrace()

    def check(_frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        if time.monotonic() > deadline:
            raise _TooLong
        return check if each_line else None

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

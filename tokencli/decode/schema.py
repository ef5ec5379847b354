"""From a JSON schema to a grammar (llama.cpp's GBNF) of which every text is valid, for the part of JSON Schema that most use.

What it does not know it refuses by name: an answer is never less than what was asked for. Pure.
"""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, NoReturn
from urllib.parse import unquote

from tokencli.errors import UsageError

_ANNOTATIONS = {
    *("title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions"),
    *("deprecated", "readOnly", "writeOnly", "example", "externalDocs", "discriminator"),
}
_KNOWN = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "number": set[str](),
    "integer": set[str](),
    "boolean": set[str](),
    "null": set[str](),
}
# The rules of JSON itself (RFC 8259), with bounds where a model could go on without end. No surrogates: they count double.
_SPACE = r"""space ::= | " " | "\n" [ \t]{0,20}"""
_BASIC = (
    _SPACE,
    r"""char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" ([0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2}))""",
    r"""hex ::= [0-9a-fA-F]""",
    r"""string ::= "\"" char* "\"" """.rstrip(),
    r"""integer ::= "-"? ("0" | [1-9] [0-9]{0,15})""",
    r"""number ::= integer ("." [0-9]{1,16})? ([eE] [+-]? [0-9]{1,2})?""",
    r"""boolean ::= "true" | "false" """.rstrip(),
    r"""null ::= "null" """.rstrip(),
    r"""any ::= object | array | string | number | boolean | null""",
    r"""member ::= string space ":" space any""",
    r"""object ::= "{" space (member (space "," space member)*)? space "}" """.rstrip(),
    r"""array ::= "[" space (any (space "," space any)*)? space "]" """.rstrip(),
)


def check_schema(text: str) -> None:
    """Raises UsageError for a schema that `grammar_of` refuses."""
    grammar_of(text)


def grammar_of(text: str) -> str:
    """The grammar of a schema's text. Raises UsageError: not JSON, or with a keyword that is not known here."""
    try:
        return _Rules(json.loads(text, parse_constant=_no_number)).text()
    except ValueError as error:
        raise UsageError(f"the JSON schema is not JSON: {error}", "check the file of --json-schema") from None
    except RecursionError:
        raise UsageError("the JSON schema is nested too deeply", "make it simpler") from None


class _Rules:
    """Collects the rules of one schema, each under a name of its own: names in the schema may be anything."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rules: list[str] = []
        self._by_reference: dict[str, str] = {}

    def text(self) -> str:
        root = self._of(self._schema, "the schema")
        return "\n".join([f"root ::= {root}", *self._rules, *_BASIC])

    def _rule(self, body: str) -> str:
        name = f"rule-{len(self._rules)}"
        self._rules.append(f"{name} ::= {body}")
        return name

    def _of(self, schema: Any, where: str) -> str:
        """An expression for the values of a schema: a rule's name or a few literals in brackets."""
        if schema is True:
            return "any"
        if not isinstance(schema, dict):
            raise _refused(f"{where} is {json.dumps(schema)[:40]}, not a schema")
        kinds = _types(schema, where)
        left_aside = _ANNOTATIONS if schema.get("nullable") else {*_ANNOTATIONS, "nullable"}
        given = {keyword for keyword in schema.keys() - left_aside if not keyword.startswith("x-")}
        for keyword, make in (
            ("$ref", self._reference),
            ("anyOf", self._any_of),
            ("oneOf", self._one_of),
            ("allOf", self._all_of),
        ):
            if keyword in schema:
                _only(given, {keyword}, where, f" beside {keyword!r}")
                return make(schema[keyword], where)
        for keyword in ("const", "enum"):
            if keyword in schema:
                _only(given, {keyword, "type", "nullable"}, where, f" beside {keyword!r}")
                return "(" + " | ".join(_literal(value) for value in _values(schema, where) or ()) + ")"
        kinds = kinds or _guess(given)
        if not kinds and not given - {"nullable"}:
            return "any"
        _only(given, {"type", "nullable"}.union(*(_KNOWN[kind] for kind in kinds)), where)
        made = [self._of_kind(kind, schema, where) for kind in kinds]
        return made[0] if len(made) == 1 else f"({' | '.join(made)})"

    def _of_kind(self, kind: str, schema: Mapping[str, Any], where: str) -> str:
        match kind:
            case "object":
                return self._object(schema, where)
            case "array":
                return self._array(schema, where)
            case "string" if "minLength" in schema or "maxLength" in schema:
                return self._rule(rf'"\"" char{_times(schema, "minLength", "maxLength", where)} "\""')
        return kind

    def _reference(self, reference: Any, where: str) -> str:
        target = self._target(reference, where)
        if reference not in self._by_reference:
            if reference in self._led_to(target, where):
                raise _refused(f"{where} refers to {reference!r}, which begins with itself")
            place = len(self._rules)
            self._rules.append("")  # its name is known before its body: it may refer to itself
            self._by_reference[reference] = f"rule-{place}"
            self._rules[place] = f"rule-{place} ::= {self._of(target, reference)}"
        return self._by_reference[reference]

    def _target(self, reference: Any, where: str) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise _refused(f"{where} refers to {reference!r}, which is not # or #/... of this file")
        found = self._schema
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise _refused(f"{where} refers to {reference!r}, which is not there")
            found = found[name]
        return found

    def _led_to(self, schema: Any, where: str) -> set[str]:
        """The references that are reached from a schema before any text is written."""
        found: set[str] = set()
        waiting = [schema]
        while waiting:
            each = waiting.pop()
            if not isinstance(each, dict):
                continue
            for keyword in ("anyOf", "oneOf", "allOf"):
                waiting += each[keyword] if isinstance(each.get(keyword), list) else ()
            if isinstance(each.get("$ref"), str) and each["$ref"] not in found:
                waiting.append(self._target(each["$ref"], where))
                found.add(each["$ref"])
        return found

    def _any_of(self, schemas: Any, where: str, keyword: str = "anyOf") -> str:
        if not isinstance(schemas, list) or not schemas:
            raise _refused(f"{where} has an {keyword} that is no list")
        return "(" + " | ".join(self._of(each, f"{where}, {keyword} {number}") for number, each in enumerate(schemas)) + ")"

    def _one_of(self, schemas: Any, where: str) -> str:
        """As anyOf, where no value can be of two of the alternatives."""
        made = self._any_of(schemas, where, "oneOf")
        for (one, first), (other, second) in combinations(enumerate(schemas), 2):
            if not self._apart(self._meant(first, where), self._meant(second, where), where):
                raise _refused(f"{where} has 'oneOf', of which {one} and {other} may hold together")
        return made

    def _all_of(self, schemas: Any, where: str) -> str:
        if not isinstance(schemas, list) or len(schemas) != 1:
            raise _refused(f"{where} has 'allOf' of another count than one")
        return self._of(schemas[0], where)

    def _meant(self, schema: Any, where: str) -> Any:
        """The schema that another only refers to or wraps."""
        while isinstance(schema, dict) and ("$ref" in schema or "allOf" in schema):
            schema = self._target(schema["$ref"], where) if "$ref" in schema else schema["allOf"][0]
        return {} if schema is True else schema

    def _apart(self, one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> bool:
        """Whether no value is of both: of no type of both, not among the values of both, or told apart by a member of both."""
        if not self._may_be(one, where) & self._may_be(other, where):
            return True
        ours, theirs = _values(one, where), _values(other, where)
        if ours is not None and theirs is not None:
            return not any(value in theirs for value in ours)
        for name in set(one.get("required", ())) & set(other.get("required", ())):
            ours, theirs = (_values(self._meant(each["properties"][name], where), where) for each in (one, other))
            if ours is not None and theirs is not None and not any(value in theirs for value in ours):
                return True
        return False

    def _may_be(self, schema: Any, where: str) -> set[str]:
        """The types that a value of a schema may be of."""
        schema = self._meant(schema, where)
        if (values := _values(schema, where)) is not None:
            return set().union(*(_types_of(value) for value in values))
        choices = schema.get("anyOf", schema.get("oneOf", ()))
        if choices:
            return set().union(*(self._may_be(each, where) for each in choices))
        kinds = set(_types(schema, where) or _KNOWN)
        return kinds | {"integer"} if "number" in kinds else kinds

    def _array(self, schema: Mapping[str, Any], where: str) -> str:
        """Items, the first by prefixItems where given. After these come others only where `items` or the count asks for them."""
        least, most = _bounds(schema, "minItems", "maxItems", where)
        first = schema.get("prefixItems", [])
        if not isinstance(first, list):
            raise _refused(f"{where} has prefixItems that are no list")
        items = schema.get("items", not first or least > len(first))
        most = len(first) if items is False and (most is None or most > len(first)) else most
        if most is not None and most < least:
            raise _refused(f"{where} has minItems {least} and items only for {most}")
        made = [self._of(each, f"item {number} of {where}") for number, each in enumerate(first)][:most]
        further = "" if items is False else self._of(items, f"the items of {where}")
        if not made and most != 0:
            made = [further]
        rest = ""
        if most is None or most > len(made):
            rest = f'(space "," space {further}){{{max(least - len(made), 0)},{"" if most is None else most - len(made)}}}'
        for number, item in reversed(list(enumerate(made))):
            rest = f'{"" if number == 0 else """space "," space """}{item} {rest}{" space" if number == 0 else ""}'
            rest = rest if number < least else f"({rest})?"
        return self._rule(f'"[" space {rest} "]"')

    def _object(self, schema: Mapping[str, Any], where: str) -> str:
        """Members in the schema's order, the optional ones left out or not. Others only where no member is named."""
        members, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(members, dict):
            raise _refused(f"{where} has properties that are no object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise _refused(f"{where} has a required that is no list of names")
        if not isinstance(schema.get("additionalProperties", True), bool | dict):
            raise _refused(f"{where} has additionalProperties that are no schema")
        if missing := [name for name in required if name not in members]:
            raise _refused(f"{where} requires {missing[0]!r}, which is not among its properties")
        if not members:
            return self._map(schema.get("additionalProperties", True), where)
        rest = {False: 'space "}"', True: 'space "}"'}  # what may follow, before and after the first member
        for name, each in reversed(members.items()):
            member = rf'{_literal(name)} space ":" space {self._of(each, f"{name!r} of {where}")}'
            rule = self._rule(member)
            after = self._rule(rest[True])
            present = {False: f"space {rule} {after}", True: f'space "," space {rule} {after}'}
            if name in required:
                rest = present
            else:
                rest = {started: f"{present[started]} | {self._rule(rest[started])}" for started in rest}
        return self._rule(f'"{{" {self._rule(rest[False])}')

    def _map(self, value: Any, where: str) -> str:
        if value is False:
            return self._rule(r'"{" space "}"')
        member = rf'string space ":" space {self._of(value, f"the values of {where}")}'
        return self._rule(rf'"{{" space ({member} (space "," space {member})*)? space "}}"')


def _types(schema: Mapping[str, Any], where: str) -> list[str]:
    """The types that a schema names, with null where it is nullable; none where it names none."""
    nullable = schema.get("nullable", False)
    if not isinstance(nullable, bool):
        raise _refused(f"{where} has the nullable {nullable!r}")
    if "type" not in schema:
        return []
    given = schema["type"]
    kinds = [given] if isinstance(given, str) else given
    if not isinstance(kinds, list) or not kinds:
        raise _refused(f"{where} has the type {given!r}")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _KNOWN:
            raise _refused(f"{where} has the type {kind!r}")
    return list(dict.fromkeys([*kinds, "null"] if nullable else kinds))


def _types_of(value: Any) -> set[str]:
    """The types that a value is of: a whole number is of two."""
    match value:
        case bool():
            return {"boolean"}
        case int() | float():
            return {"number", "integer"} if value % 1 == 0 else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case dict():
            return {"object"}
    return {"null"}


def _guess(given: Iterable[str]) -> list[str]:
    """The type that a schema without one must mean by its other keywords."""
    return [kind for kind, known in _KNOWN.items() if known & set(given)][:1]


def _only(given: Iterable[str], known: set[str], where: str, beside: str = "") -> None:
    if unknown := sorted(set(given) - known):
        raise _refused(f"{where} has {unknown[0]!r}{beside}")


def _values(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    """The values of a const or an enum that are of the types given, if any are; None without const and enum."""
    keyword = "const" if "const" in schema else "enum"
    if keyword not in schema:
        return None
    values = [schema["const"]] if keyword == "const" else schema["enum"]
    if not isinstance(values, list) or not values:
        raise _refused(f"{where} has an enum without values")
    if kinds := set(_types(schema, where)):
        values = [value for value in values if _types_of(value) & kinds]
    if not values:
        raise _refused(f"{where} has {keyword!r} without a value of its type")
    return values


def _bounds(schema: Mapping[str, Any], least: str, most: str, where: str) -> tuple[int, int | None]:
    """How few and how many, where None is without end. A number of JSON may be true to Python: that is none here."""
    low, high = schema.get(least, 0), schema.get(most)
    good = all(type(schema.get(key, 0)) is int for key in (least, most)) and low >= 0 and (high is None or low <= high)
    if not good or max(low, high or 0) > _MOST_REPEATED:
        raise _refused(f"{where} has {least} {low} and {most} {high}")
    return low, high


_MOST_REPEATED = 2000  # llama.cpp's own limit on repetitions


def _times(schema: Mapping[str, Any], least: str, most: str, where: str) -> str:
    low, high = _bounds(schema, least, most, where)
    return f"{{{low},{'' if high is None else high}}}"


def _literal(value: Any) -> str:
    """A value's JSON as a literal of GBNF."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text = re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)  # half a pair has no UTF-8
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _refused(what: str) -> UsageError:
    known = (
        "types, nullable, properties, required, additionalProperties, items, prefixItems, lengths and counts, enum, const, "
        "anyOf, oneOf of disjoint alternatives, allOf of one and local $ref"
    )
    return UsageError(f"this JSON schema is not one that can be kept to: {what}", f"known here: {known}; or give a --grammar")

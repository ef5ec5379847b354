"""From a JSON schema to a grammar: what is known is written, what is not is refused by name. Validity is tested on llama.cpp."""

import json

import pytest

from tests.unit.json_schemas import SCHEMAS, is_valid
from tokencli.decode.schema import check_schema, grammar_of
from tokencli.errors import UsageError


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_rule_is_defined_once_and_every_name_is(name: str) -> None:
    rules = [line.split(" ::= ") for line in grammar_of(json.dumps(SCHEMAS[name])).splitlines()]
    names = [left for left, _ in rules]
    assert len(names) == len(set(names))
    assert names[0] == "root"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "integer", "minimum": 3}, "the schema has 'minimum'"),
        ({"type": "string", "pattern": "^a"}, "has 'pattern'"),
        ({"type": "string", "format": "date"}, "has 'format'"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "has 'oneOf', of which 0 and 1 may hold together"),
        ({"oneOf": [{"const": 1}, {"enum": [2, 1.0]}]}, "has 'oneOf'"),
        ({"oneOf": [{"type": "null"}, {}]}, "has 'oneOf'"),
        ({"oneOf": [{"type": "object", "properties": {"k": {"const": name}}} for name in "ab"]}, "has 'oneOf'"),
        ({"oneOf": [{"type": "null"}, {"oneOf": [{"$ref": "#"}]}]}, "begins with itself"),
        ({"oneOf": 3}, "an oneOf that is no list"),
        ({"allOf": [{"type": "null"}, {"type": "null"}]}, "has 'allOf'"),
        ({"allOf": [{"type": "null"}], "nullable": True}, "has 'nullable' beside 'allOf'"),
        ({"type": "string", "nullable": 1}, "the nullable 1"),
        ({"type": "array", "prefixItems": {}}, "prefixItems that are no list"),
        ({"type": "array", "prefixItems": [True], "items": False, "minItems": 2}, "minItems 2"),
        ({"type": "array", "items": False, "minItems": 1}, "minItems 1"),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "'a' of the schema has 'uniqueItems'"),
        ({"type": "string", "maxItems": 3}, "has 'maxItems'"),
        ({"type": "thing"}, "the type 'thing'"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "requires 'a'"),
        ({"type": "array", "minItems": 4, "maxItems": 3}, "minItems 4"),
        ({"type": "string", "maxLength": 100_000}, "maxLength 100000"),
        ({"$ref": "#/$defs/none"}, "is not there"),
        ({"$ref": "https://example.com/x"}, "is not # or #/... of this file"),
        ({"$ref": "#Addr"}, "refers to '#Addr'"),
        ({"$ref": ["x"]}, "refers to ['x']"),
        ({"$ref": "#", "type": "object"}, "has 'type' beside '$ref'"),
        ({"type": [{}]}, "the type {}"),
        ({"type": []}, "the type []"),
        ({"type": None}, "the type None"),
        ({"type": "object", "properties": {"a": True}, "required": [["a"]]}, "no list of names"),
        ({"type": "object", "properties": {"a": True}, "required": "a"}, "no list of names"),
        ({"type": "object", "properties": [1]}, "properties that are no object"),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": 3}, "additionalProperties"),
        ({"type": "string", "minLength": True}, "minLength True"),
        ({"type": "string", "maxLength": None}, "maxLength None"),
        ({"type": "string", "enum": [1, None]}, "'enum' without a value of its type"),
        ({"type": "string", "const": 1}, "'const' without a value of its type"),
        ({"type": "integer", "anyOf": [{}]}, "has 'type' beside 'anyOf'"),
        ({"anyOf": {"a": 1}}, "an anyOf that is no list"),
        ({"enum": []}, "enum without values"),
        ({"anyOf": []}, "anyOf"),
        ({"anyOf": [{"type": "null"}], "enum": [1]}, "has 'enum'"),
        ({"type": "object", "additionalProperties": {"not": {}}}, "has 'not'"),
        ({"type": "array", "items": [{"type": "null"}]}, "not a schema"),
        (False, "not a schema"),
        (3, "not a schema"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(schema: object, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_schema(json.dumps(schema))
    assert says in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [True, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        {
            "$defs": {"b": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
            "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/b"}}, {"$ref": "#/$defs/b"}],
        },
    ],
)
def test_a_schema_that_begins_with_itself_is_refused(schema: object) -> None:
    with pytest.raises(UsageError, match="which begins with itself"):
        check_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "root"),
    [
        ({"type": "string", "enum": ["a", 1, None]}, r'("\"a\"")'),
        ({"type": ["integer", "null"], "enum": ["a", 1, 1.5, 2.0, True, None]}, '("1" | "2.0" | "null")'),
        ({"type": "boolean", "enum": [0, False]}, '("false")'),
        ({"enum": ["a", 1]}, r'("\"a\"" | "1")'),
        ({"const": "\ud800"}, r'("\"\\ud800\"")'),
        ({"type": ["string", "string"]}, "string"),
        ({"type": "string", "nullable": True, "x-order": 1}, "(string | null)"),
        ({"type": "string", "nullable": True, "enum": ["a"]}, r'("\"a\"")'),
        ({"type": "string", "nullable": False}, "string"),
        ({"allOf": [{"type": "null"}], "title": "T"}, "null"),
        ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, r'(("\"a\"") | ("\"b\""))'),
        ({"oneOf": [{"type": "string"}, {"anyOf": [{"type": "null"}, {"type": "number"}]}]}, "(string | (null | number))"),
        ({"oneOf": [{"type": "integer"}, {"const": 1.5}]}, '(integer | ("1.5"))'),
    ],
)
def test_values_are_those_of_the_type(schema: object, root: str) -> None:
    assert grammar_of(json.dumps(schema)).splitlines()[0] == f"root ::= {root}"


def test_a_reference_is_a_part_of_an_address() -> None:
    assert (
        check_schema('{"$defs": {"a b": true, "c/d": true}, "anyOf": [{"$ref": "#/$defs/a%20b"}, {"$ref": "#/$defs/c~1d"}]}')
        is None
    )


def test_what_is_no_json_or_nested_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="is not JSON"):
        check_schema("{")
    for number in ("NaN", "-Infinity", "1e999"):
        with pytest.raises(UsageError, match="is not JSON"):
            check_schema(f'{{"type": "number", "const": {number}}}')
    with pytest.raises(UsageError, match="nested too deeply"):
        check_schema('{"items":' * 2000 + "{}" + "}" * 2000)


def test_the_checker_itself_tells_right_from_wrong() -> None:
    person = {"name": "Ann", "tags": ["red"]}
    assert is_valid(person, SCHEMAS["a person"])
    for wrong in (
        {**person, "age": 1.5},
        {**person, "x": 1},
        {"name": "Ann"},
        {**person, "tags": []},
        {**person, "name": "x" * 13},
    ):
        assert not is_valid(wrong, SCHEMAS["a person"])
    assert is_valid({"v": 1, "c": [{"v": 2}]}, SCHEMAS["a tree"])
    assert not is_valid({"v": 1, "c": [{"v": "2"}]}, SCHEMAS["a tree"])

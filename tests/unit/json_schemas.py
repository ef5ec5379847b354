"""A checker for the part of JSON Schema that tokencli keeps to, written from the specification and not from the converter."""

from typing import Any

KINDS = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def is_valid(value: Any, schema: Any, root: Any = None) -> bool:
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        found = root
        for name in schema["$ref"].split("/")[1:]:
            found = found[name]
        return is_valid(value, found, root)
    kinds = schema.get("type", list(KINDS))
    kinds = [*([kinds] if isinstance(kinds, str) else kinds), *(["null"] if schema.get("nullable") else [])]
    checks = [
        any(KINDS[kind](value) for kind in kinds),
        "const" not in schema or value == schema["const"],
        "enum" not in schema or value in schema["enum"],
        "oneOf" not in schema or sum(is_valid(value, each, root) for each in schema["oneOf"]) == 1,
        all(is_valid(value, each, root) for each in schema.get("allOf", ())),
        "anyOf" not in schema or any(is_valid(value, each, root) for each in schema["anyOf"]),
    ]
    if isinstance(value, dict):
        members = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        checks += [name in value for name in schema.get("required", [])]
        checks += [is_valid(each, members.get(name, others), root) for name, each in value.items()]
    if isinstance(value, list):
        checks += [schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))]
        first = schema.get("prefixItems", [])
        checks += [is_valid(each, kind, root) for each, kind in zip(value, first, strict=False)]
        checks += [is_valid(each, schema.get("items", True), root) for each in value[len(first) :]]
    if isinstance(value, str):
        checks += [schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))]
    return all(checks)


PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "note": {"type": ["string", "null"], "maxLength": 8},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
TAGGED = {
    "$defs": {
        "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}}, "required": ["kind"]},
        "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]},
    },
    "oneOf": [{"$ref": "#/$defs/cat"}, {"allOf": [{"$ref": "#/$defs/dog"}]}],
    "discriminator": {"propertyName": "kind"},
}
PAIR = [{"type": "string", "maxLength": 3}, {"type": "boolean", "nullable": True}]
SCHEMAS: dict[str, Any] = {
    "a tagged union": TAGGED,
    "a pair": {"type": "array", "prefixItems": PAIR, "minItems": 2, "maxItems": 2},
    "a part of a pair": {"type": "array", "prefixItems": PAIR, "minItems": 1, "items": False},
    "a pair and more": {"type": "array", "prefixItems": PAIR, "items": {"const": 0}, "minItems": 3, "maxItems": 4},
    "a person": PERSON,
    "a choice": {"enum": ["yes", "no", 'a "quoted" one', 3, None]},
    "a map": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "a constant": {"const": {"a": [1, "zwei\n"]}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "number"}, "maxItems": 2}]},
    "a tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "c": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
                },
                "required": ["v"],
            }
        },
        "$ref": "#/$defs/node",
    },
    "only optional": {"properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"const": 1}}},
    "no items": {"type": "array", "items": {}, "maxItems": 0},
    "odd names": {"type": "object", "properties": {'a "b" \\ ü/~': {"type": "null"}}, "required": ['a "b" \\ ü/~']},
}

"""50 schemas of varied shape, bounded so that an output comes to its end whatever the model would like to write."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

WORD: Schema = {"type": "string", "pattern": "^[a-z]{2,8}$"}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 12}
SMALL: Schema = {"type": "integer", "minimum": 0, "maximum": 99}


def obj(optional: tuple[str, ...] = (), **properties: Any) -> Schema:
    """An object with these properties and no others, all required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def array(items: Any, low: int = 1, high: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def number(**bounds: Any) -> Schema:
    return {"type": "number", **bounds}


SCALARS: list[Schema] = [
    {"type": "boolean"},
    {"type": "null"},
    {"const": "fixed"},
    {"enum": ["red", "green", 3, None, True, {"a": [1]}]},
    SMALL,
    {"type": "integer", "minimum": -20, "maximum": -3},
    {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 13},
    {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 25},
    {"type": ["integer", "null"], "minimum": 1, "maximum": 5},
]

STRINGS: list[Schema] = [
    WORD,
    NAME,
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^(\\+49|0)[1-9][0-9]{3,6}$"},
    {"type": "string", "pattern": "^[A-Z][a-z]+ [A-Z]\\.$", "maxLength": 12},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "enum": ["a", "a b", 'quote " and \\', "é", "日本"]},
]

OBJECTS: list[Schema] = [
    obj(name=NAME, age=SMALL),
    obj(("b",), a=WORD, b=WORD),
    obj(("a", "b", "c"), a=SMALL, b=SMALL, c=SMALL),
    obj(id=SMALL, inner=obj(x=SMALL, deeper=obj(y=WORD, deepest=obj(z={"type": "boolean"})))),
    obj(**{"key with spaces": SMALL, 'quote"': SMALL, "ünï": WORD, "$ref": WORD}),
    obj(price=number(minimum=0, maximum=10), currency={"enum": ["EUR", "USD"]}),
    obj(**{f"field_{n}": {"type": "boolean"} for n in range(12)}),
    {"type": "object", "additionalProperties": False},
    {"type": "object", "properties": {}, "additionalProperties": SMALL, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^[a-c]{1,2}$": SMALL}, "additionalProperties": False, "maxProperties": 2},
    obj(kind={"const": "point"}, at=array(number(minimum=-1, maximum=1), 2, 2)),
]

ARRAYS: list[Schema] = [
    array(SMALL),
    array(WORD, 0, 2),
    array({"enum": ["x", "y"]}, 4, 4),
    array(array(SMALL, 1, 2), 1, 2),
    array(obj(a=SMALL), 2, 2),
    {"type": "array", "prefixItems": [WORD, SMALL, {"type": "boolean"}], "items": False, "minItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2, "maxItems": 4},
    {"type": "array", "maxItems": 0},
]

CHOICES: list[Schema] = [
    {"anyOf": [SMALL, WORD, {"type": "null"}]},
    {"anyOf": [obj(a=SMALL), obj(b=WORD), array(SMALL)]},
    {"oneOf": [{"type": "boolean"}, WORD]},
    {"oneOf": [obj(kind={"const": "cat"}, lives=SMALL), obj(kind={"const": "dog"}, bark=WORD)]},
    obj(value={"anyOf": [SMALL, {"type": "null"}]}, unit={"enum": ["m", "s", None]}),
    {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
            {"properties": {"b": WORD}, "required": ["b"]},
        ],
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    },
]

REFERENCES: list[Schema] = [
    {"$defs": {"word": WORD}, **obj(a={"$ref": "#/$defs/word"}, b={"$ref": "#/$defs/word"})},
    {"definitions": {"pair": array(SMALL, 2, 2)}, **obj(low={"$ref": "#/definitions/pair"})},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": SMALL}, "$ref": "#/$defs/a"},
    {
        "$defs": {"node": obj(("left",), v=SMALL, left={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]})}
        | {"leaf": obj(v=SMALL)},
        **obj(root={"$ref": "#/$defs/node"}),
    },
    obj(first=WORD, again={"$ref": "#/properties/first"}),
    {"title": "Annotated", "description": "…", "default": {}, "examples": [1], "x-internal": True, **obj(a=SMALL)},
]

SCHEMAS = [*SCALARS, *STRINGS, *OBJECTS, *ARRAYS, *CHOICES, *REFERENCES]

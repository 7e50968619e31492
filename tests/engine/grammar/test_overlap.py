"""How many combinations of patterns a form leads to, and how deep its parts lie."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from services.engine.grammar.overlap import grammar_overlap, pattern_width, schema_reach


@pytest.mark.parametrize(
    ("pattern", "width"),
    [
        ("^abc$", 1),
        ("^[a-z]{2,3}$", 1),
        ("^[a-z]+x$", 2),
        ("abc", 2),
        (r"^\d\d\w$", 2),
        (r"^\d+\.\d+$", 2),
        ("^(?i)ab$", 4),
        ("^[^]x]*$", 1),
        ("^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+[.][a-zA-Z]{2,}$", 6),
        ("", 1),
    ],
)
def test_width_of_a_pattern(pattern: str, width: int) -> None:
    assert pattern_width(pattern) == width


def strings(*patterns: str) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": pattern} for pattern in patterns]


ONE, TWO, THREE = strings("^a$", "a", "[a-z]x")  # of widths 1, 2 and 3


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "most"),
    [
        (True, 1),
        ({"type": "string"}, 1),
        (TWO, 2),
        ({**TWO, "format": "date"}, 16),
        ({"allOf": [TWO, THREE, ONE]}, 6),
        ({**TWO, "allOf": [THREE]}, 6),
        ({"anyOf": [TWO, THREE]}, 3),
        ({**TWO, "anyOf": [TWO, THREE], "oneOf": [ONE, TWO]}, 12),
        # Values of different properties never meet, those of one do.
        (obj(a=TWO, b=THREE), 3),
        ({"allOf": [obj(a=TWO), obj(b=THREE)]}, 3),
        ({"allOf": [obj(a=TWO), obj(a=THREE)]}, 6),
        ({"allOf": [obj(a=TWO), {"additionalProperties": THREE}]}, 6),
        ({"allOf": [obj(a=TWO), {"patternProperties": {"^a": THREE}}]}, 6),
        ({"allOf": [{"items": TWO}, {"prefixItems": [ONE, THREE]}]}, 6),
        ({"allOf": [obj(a=TWO), {"additionalProperties": False}, obj(b=THREE)]}, 3),
        # References
        ({"$defs": {"a": THREE, "b": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/b"}, TWO]}, 6),
        ({"$defs": {"a/b~": [THREE]}, "$ref": "#/$defs/a~1b~0/0", **TWO}, 6),
        ({"items": {"$id": "urn:x", "$defs": {"a": THREE}, "$ref": "#/$defs/a"}, "$defs": {"a": TWO}}, 3),
        ({"$defs": {"x": {"$id": "urn:x", "definitions": {"a": THREE}}}, "$ref": "urn:x#/definitions/a"}, 3),
        ({"$defs": {"node": obj(next={"$ref": "#/$defs/node"}, v=TWO)}, "$ref": "#/$defs/node"}, 2),
        # One that is not found may mean anything.
        ({"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor", **TWO}, "b": THREE}}, 6),
        ({"allOf": strings(*(["a"] * 1000))}, 2**64),
    ],
)
def test_combinations_of_a_schema(schema: Any, most: int) -> None:
    assert schema_reach(schema).most() == most


def test_levels_of_a_schema() -> None:
    assert schema_reach(ONE).levels == 0
    assert schema_reach(reduce(lambda inner, _: {"items": obj(a=inner)}, range(10), ONE)).levels == 20
    chain = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(5000)}
    assert schema_reach({"$ref": "#/$defs/d0", "$defs": {**chain, "d5000": ONE}}).levels == 10_001


@pytest.mark.parametrize(
    ("grammar", "most"),
    [
        ("start: A\nA: /[ab]c/", 1),
        ("start: A\nA: /[ab]c/ & /[bc]*/", 3 * 2),
        ("start: A\nA: B & /c[a-z]+/ | C\nB: C /x/\nC: /[ab]/ & /./ // & D\n", 7 * 7),
        ("start: A\nA: /ab/i & /b/", (1 + 4) * 2),
        ('start: "&" A\nA: /a&b/ # & /[a-z]/', 1),
        ("start: A\nA: (B\n  & WORD)\nB: A", 3 * 5),
        ('start: a\na: %json {"allOf": [{"pattern": "a"}, {"pattern": "b"}]}', 4),
        ("start: a\na: %json {", 1),
        ('root ::= "a" | b\nb ::= [&a-z]', 1),
    ],
)
def test_combinations_of_a_grammar(grammar: str, most: int) -> None:
    assert grammar_overlap(grammar) == most

"""The longest text that a form prescribes."""

from __future__ import annotations

import json

import pytest

from services.engine.grammar.constants import longest_constant
from services.engine.grammar.form import FormKind, OutputForm


@pytest.mark.parametrize(
    ("kind", "text", "length"),
    [
        ("json_object", "", 0),
        ("json_schema", json.dumps({"description": "a" * 100, "type": "string"}), 0),
        ("json_schema", json.dumps({"anyOf": [{"const": "abc"}, {"enum": [1, None, ["abcd", "ab"]]}]}), 4),
        ("json_schema", json.dumps({"items": {"pattern": "abc|abcde"}}), 5),
        ("json_schema", "{", 0),
        ("choice", json.dumps(["a", "abc", ""]), 3),
        ("regex", "abc|d|ef", 3),
        ("grammar", 'start: "abc" | "de" /f|gh/', 5),
        ("grammar", 'start: a\na: %json {"const": "abcdefghi"}', 11),
    ],
)
def test_length(kind: FormKind, text: str, length: int) -> None:
    assert longest_constant(OutputForm(kind, text)) == length

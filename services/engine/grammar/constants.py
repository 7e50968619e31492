"""How long a text a form prescribes: llguidance looks at the rest of it for the mask of each of its tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from services.engine.grammar.form import OutputForm
from services.engine.grammar.overlap import embedded_in_grammar, json_objects

# Of a Lark grammar or GBNF: strings and patterns.
_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/', re.DOTALL)


def longest_constant(form: OutputForm) -> int:
    """Characters of the longest text without a choice in it, at most. 0 for a form that is no JSON where it must be,
    which compiling it refuses."""
    try:
        return max(map(len, _constants(form)), default=0)
    except (ValueError, RecursionError):
        return 0


def _constants(form: OutputForm) -> Iterator[str]:
    match form.kind:
        case "json_schema":
            yield from _of_schema(json.loads(form.text))
        case "choice":
            yield from json.loads(form.text)
        case "regex":
            yield from form.text.split("|")
        case "grammar":
            for literal in _LITERAL.findall(form.text):
                yield from literal.split("|") if literal.startswith("/") else [literal]
            for schema in embedded_in_grammar(form.text):
                yield from _of_schema(schema)


def _of_schema(schema: Any) -> Iterator[str]:
    for found in json_objects(schema):
        yield from _strings([found.get("const"), found.get("enum")])
        if isinstance(pattern := found.get("pattern"), str):
            yield from pattern.split("|")


def _strings(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        match left.pop():
            case str() as found:
                yield found
            case list() as found:
                left.extend(found)
            case dict() as found:
                left.extend(found.values())

"""Llama's pythonic tool calls: the whole answer is a list of Python calls, `[weather(city="Rome"), now()]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from services.gateway.formats.call_scanner import new_call_id
from services.gateway.formats.calls import PYTHON_TAG, finish_reason
from services.gateway.parts import Content, Part, ToolCallArguments, ToolCallStart

# How every list of calls begins, cut anywhere.
_BEGINNING = re.compile(r"\s*\[?\s*|\s*\[\s*[A-Za-z_][\w.]*\s*(\(.*)?", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}


class PythonicReader:
    """Calls come out when the list is complete: the meaning of Python's text may change up to its end."""

    def __init__(self) -> None:
        self._held = ""
        self._calls = 0
        self._is_content = False

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        if self._is_content:
            return [Content(text)]
        self._held += text
        if _may_be_calls(self._held):
            return []
        self._is_content = True
        held, self._held = self._held, ""
        return [Content(held)]

    def close(self) -> Sequence[Part]:
        """What was held back; the text has ended."""
        held, self._held = self._held, ""
        calls = _parse(held.strip().removeprefix(PYTHON_TAG).strip())
        if calls is None:
            return [Content(held)] if held else []
        self._calls = len(calls)
        parts: list[Part] = []
        for number, (name, arguments) in enumerate(calls):
            parts.append(ToolCallStart(number, new_call_id(), name))
            parts.append(ToolCallArguments(number, json.dumps(arguments, ensure_ascii=False)))
        return parts

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` where the text ended by itself and has calls."""
        return finish_reason(reason, self._calls)


def _may_be_calls(text: str) -> bool:
    text = text.lstrip()
    if PYTHON_TAG.startswith(text[: len(PYTHON_TAG)]):
        text = text[len(PYTHON_TAG) :]
    return _BEGINNING.fullmatch(text) is not None


def _parse(text: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Names and arguments of a list of calls; None for anything else."""
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """Raises ValueError for what is no call with named literals."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError("not a function's name")
    return name, {_argument_name(keyword): _value(keyword.value) for keyword in node.keywords}


def _argument_name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("** is no argument")
    return keyword.arg


def _value(node: ast.expr) -> Any:
    """A literal; JSON's words for constants count, as models mix them up. Raises ValueError for anything else."""
    match node:
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {str(_value(key)): _value(value) for key, value in zip(keys, values, strict=True) if key}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("no JSON value")
    return value

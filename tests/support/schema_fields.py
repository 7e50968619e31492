"""The fields that a JSON Schema describes, by their paths: `choices[].message.content`, `top_logprobs[]{}`."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

MAX_DEPTH = 16  # schemas that contain themselves end here
_CHOICES = ("anyOf", "oneOf", "allOf")


def fields_of(document: Json, schema: Json) -> dict[str, list[Json]]:
    """Where each field is described; "" is the value itself. References lead into `document`."""
    found: dict[str, list[Json]] = {}
    _walk(document, schema, "", 0, found)
    return found


def may_be_null(schemas: list[Json]) -> bool:
    """Whether one of the schemas that describe a field allows null."""
    return any("null" in schema.get("type", ()) or None in schema.get("enum", ()) for schema in schemas)


def values_of(schemas: list[Json]) -> set[Any]:
    """The only values of a field, but null; empty where it is free."""
    given = [schema.get("enum", [schema["const"]] if "const" in schema else []) for schema in schemas]
    return {value for values in given for value in values} - {None}


def types_of(schemas: list[Json]) -> set[str]:
    """The JSON types of a field, but null; empty where none is given. An integer is a number, too."""
    given = [schema.get("type", []) for schema in schemas]
    names = {name for types in given for name in ([types] if isinstance(types, str) else types)} - {"null"}
    return names | ({"integer"} if "number" in names else set())


def requires(schemas: list[Json], name: str) -> bool:
    """Whether one of the schemas that describe an object requires this field of it."""
    return any(name in schema.get("required", ()) for schema in schemas)


def allow_absence(schemas: list[Json], name: str) -> None:
    """Changes the schemas that describe an object, so that it may be without this field."""
    for schema in schemas:
        if name in schema.get("required", ()):
            schema["required"].remove(name)


def allow_null(schemas: list[Json]) -> None:
    """Changes the schemas that describe a field."""
    for schema in schemas:
        before = dict(schema)
        schema.clear()
        schema["anyOf"] = [before, {"type": "null"}]


def _walk(document: Json, schema: Json, path: str, depth: int, found: dict[str, list[Json]]) -> None:
    schema = _resolved(document, schema)
    if depth > MAX_DEPTH:
        return
    found.setdefault(path, []).append(schema)
    for choice in (choice for name in _CHOICES for choice in schema.get(name, ())):
        _walk(document, choice, path, depth + 1, found)
    for name, value in schema.get("properties", {}).items():
        _walk(document, value, f"{path}.{name}" if path else name, depth + 1, found)
    if "items" in schema:
        _walk(document, schema["items"], f"{path}[]", depth + 1, found)
    if isinstance(schema.get("additionalProperties"), dict):
        _walk(document, schema["additionalProperties"], f"{path}{{}}", depth + 1, found)


def _resolved(document: Json, schema: Json) -> Json:
    while "$ref" in schema:
        target: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema

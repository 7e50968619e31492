"""Checks answers against /openapi.json, and against OpenAI's specification with the differences in docs/api.md."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from starlette.routing import Route

from services.gateway.api.descriptions import DESCRIPTIONS
from services.gateway.api.openapi import document
from tests.docs.pages import code, table
from tests.support.openai_spec import common_operations, error_schema, openai_spec
from tests.support.schema_fields import allow_null, fields_of

Json = dict[str, Any]

WHOLE, EVENTS = "application/json", "text/event-stream"


@cache
def common() -> list[str]:
    """The operations that are OpenAI's, too."""
    return common_operations(DESCRIPTIONS)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of an answer that OpenAI's specification does not have (`added`), or in which it has no null."""

    operation: str
    media: str
    field: str
    kind: str


def documented_differences() -> set[Difference]:
    """The table of docs/api.md."""
    return {
        Difference(code(row["answer"]), {"whole": WHOLE, "event": EVENTS}[form], code(row["field"]), row["difference"])
        for row in table("api.md", "Answers beside OpenAI's specification")
        for form in row["form"].split(", ")
    }


@cache
def our_spec() -> Json:
    """What /openapi.json has."""
    routes = [Route(path, lambda _: None, methods=[method]) for method, path in map(str.split, DESCRIPTIONS)]
    return document(routes, needs_key=False)


def answer_schema(spec: Json, operation: str, media: str) -> Json:
    """The schema of an operation's answer: the whole one, or a stream's event without its errors.

    OpenAI describes no events of text completions: they are as the whole answers.
    """
    method, path = operation.split()
    contents = spec["paths"][path][method.lower()]["responses"]["200"]["content"]
    schema: Json = contents.get(media, contents[WHOLE])["schema"]
    if spec is our_spec() and media == EVENTS:
        *kinds, _error = schema["anyOf"]
        schema = {"anyOf": kinds}
    return schema


def check_answer(operation: str, media: str, answer: Any) -> None:
    """Fails when a whole answer, or the data of one event, is not as it is described."""
    _our_validator(operation, media).validate(answer)
    if operation in common():
        _openai_validator(operation, media).validate(answer)


def check_error(body: Any) -> None:
    """Likewise for errors in OpenAI's form."""
    schemas = openai_spec(())["components"]
    Draft202012Validator({**error_schema(), "components": schemas}).validate(body)


@cache
def _our_validator(operation: str, media: str) -> Draft202012Validator:
    """Strict: a field that is not described is a fault."""
    spec = deepcopy(our_spec())
    for schema in spec["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return Draft202012Validator({**answer_schema(our_spec(), operation, media), "components": spec["components"]})


@cache
def _openai_validator(operation: str, media: str) -> Draft202012Validator:
    spec = openai_spec([operation])
    schema = answer_schema(spec, operation, media)
    for difference in documented_differences():
        if (difference.operation, difference.media, difference.kind) == (operation, media, "null"):
            allow_null(fields_of(spec, schema)[difference.field])
    return Draft202012Validator({**schema, "components": spec["components"]})


def check_response(path: str, response: httpx.Response) -> None:
    """Fails when status, headers or body of an answer are not as /openapi.json says."""
    spec = our_spec()
    described = spec["paths"][path][response.request.method.lower()]["responses"][str(response.status_code)]
    if "$ref" in described:
        described = spec["components"]["responses"][described["$ref"].rpartition("/")[2]]
    assert [name for name in described["headers"] if name not in response.headers] == []
    media = response.headers["content-type"].split(";")[0]
    contents = {name.split(";")[0]: content for name, content in described["content"].items()}
    validator = Draft202012Validator({**contents[media]["schema"], "components": spec["components"]})
    if media == EVENTS:
        for line in response.text.splitlines():
            if line.startswith("data: {"):
                validator.validate(json.loads(line.removeprefix("data: ")))
    else:
        validator.validate(response.json() if media == WHOLE else response.text)

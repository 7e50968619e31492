"""Checks answers against /openapi.json and, with the differences in docs/api.md, against published specifications."""

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
from tests.docs.pages import code, codes, table
from tests.support.published_specs import EVENTS, WHOLE, PublishedSpec, publisher
from tests.support.schema_fields import allow_absence, allow_null, fields_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Between a field of an answer and the published specification.

    `kind`: `added`, which it does not have; `absent`, which it requires; `null`, `values` or `type`, which it does not
    allow there.
    """

    operation: str
    media: str
    field: str
    kind: str


def documented_differences() -> set[Difference]:
    """The table of docs/api.md."""
    return {
        Difference(code(row["answer"]), {"whole": WHOLE, "event": EVENTS}[form], field, row["difference"])
        for row in table("api.md", "Answers beside the published specifications")
        for form in row["form"].split(", ")
        for field in codes(row["field"])
    }


@cache
def our_spec() -> Json:
    """What /openapi.json has."""
    routes = [Route(path, lambda _: None, methods=[method]) for method, path in map(str.split, DESCRIPTIONS)]
    return document(routes, needs_key=False)


def our_answer_schema(operation: str, media: str) -> Json:
    """The schema of an operation's answer: the whole one, or a stream's event without its errors."""
    method, path = operation.split()
    schema: Json = our_spec()["paths"][path][method.lower()]["responses"]["200"]["content"][media]["schema"]
    return {"anyOf": schema["anyOf"][:-1]} if media == EVENTS else schema


def check_answer(operation: str, media: str, answer: Any) -> None:
    """Fails when a whole answer, or the data of one event, is not as it is described."""
    _our_validator(operation, media).validate(answer)
    if (published := publisher(operation)) is not None:
        _published_validator(published, operation, media).validate(answer)


def check_error(published: PublishedSpec, body: Any) -> None:
    """Likewise for errors."""
    Draft202012Validator(published.error_schema()).validate(body)


@cache
def _our_validator(operation: str, media: str) -> Draft202012Validator:
    """Strict: a field that is not described is a fault."""
    spec = deepcopy(our_spec())
    for schema in spec["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return Draft202012Validator({**our_answer_schema(operation, media), "components": spec["components"]})


@cache
def _published_validator(published: PublishedSpec, operation: str, media: str) -> Draft202012Validator:
    spec = published.restricted([operation])
    schema = published.answer_schema(spec, operation, media)
    for difference in documented_differences():
        if (difference.operation, difference.media) == (operation, media):
            _allow(fields_of(spec, schema), difference)
    return Draft202012Validator({**schema, "components": spec["components"]})


def _allow(fields: dict[str, list[Json]], difference: Difference) -> None:
    match difference.kind:
        case "null":
            allow_null(fields[difference.field])
        case "type":
            for schema in fields[difference.field]:
                schema.clear()
        case "absent":
            holder, _, name = difference.field.rpartition(".")
            allow_absence(fields[holder], name)


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

"""GET /openapi.json: the API as an OpenAPI 3.1 document, from the routes and the types of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services import __version__
from services.gateway.admission import OPEN_PATHS
from services.gateway.api.descriptions import DESCRIPTIONS, HELD_TYPES, Description
from services.gateway.error_forms import AnthropicErrorBody, ErrorBody, is_anthropic
from services.gateway.middleware import path_of

Json = dict[str, Any]

_SCHEMA_REF = "#/components/schemas/{name}"
_JSON, _EVENTS = "application/json", "text/event-stream"

ERRORS = {
    400: "The request is at fault: `param` names the field",
    401: "No API key, or none that is known",
    404: "Another model than the one served",
    408: "The request was not sent in time",
    413: "The body is too large",
    429: "Too many requests wait, or a limit of the API key is reached",
    500: "A fault of the server",
    503: "Something that is needed does not serve now",
    504: "The request took too long",
}
_OF_WORK = (400, 404, 408, 413, 429, 500, 503, 504)
_OF_KEYS = (401, 429)
_TRY_AGAIN = (429, 503)

PARAMETERS: dict[str, Json] = {
    "x-request-id": {
        "description": "The request's id: 1 to 128 characters of `[A-Za-z0-9._:-]`; the gateway makes one otherwise",
        "schema": {"type": "string"},
    },
    "x-request-timeout": {
        "description": "Seconds that the request may take",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    "traceparent": {"description": "W3C trace context", "schema": {"type": "string"}},
}
_OF_EVERY_REQUEST = ("x-request-id",)

HEADERS: dict[str, Json] = {
    "x-request-id": {"description": "The request's id", "required": True, "schema": {"type": "string"}},
    "request-id": {"description": "The same, for Anthropic's clients", "schema": {"type": "string"}},
    "Server-Timing": {"description": "Phases of the request, milliseconds", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds after which to try again", "schema": {"type": "integer", "minimum": 1}},
    "WWW-Authenticate": {"description": "`Bearer`", "schema": {"type": "string"}},
}

_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(routes: Iterable[Route], needs_key: bool) -> Json:
    """The document as a JSON object. Raises KeyError for a route without a description. `needs_key`: keys are set."""
    paths: dict[str, Json] = {}
    schemas = _Schemas(DESCRIPTIONS.values())
    for route in routes:
        path = path_of(route)
        for method in sorted(set(route.methods or ()) - {"HEAD"}):
            description = DESCRIPTIONS[f"{method} {path}"]
            paths.setdefault(path, {})[method.lower()] = _operation(method, path, description, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Postroad", "version": __version__},
        "paths": paths,
        "security": _security(optional=not needs_key),
        "components": {
            "schemas": schemas.components,
            "parameters": {name: {"name": name, "in": "header", **PARAMETERS[name]} for name in PARAMETERS},
            "headers": HEADERS,
            "responses": {
                _error_name(status, anthropic): _error(status, anthropic, schemas)
                for status in (*ERRORS, None)
                for anthropic in (False, True)
            },
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


class OpenApiEndpoint:
    """GET /openapi.json. `needs_key`: the gateway asks for API keys."""

    def __init__(self, needs_key: bool) -> None:
        self._needs_key = needs_key
        self._body = b""  # made when it is first asked for

    async def get(self, request: Request) -> Response:
        """The document."""
        if not self._body:
            routes = [route for route in request.app.routes if isinstance(route, Route)]
            self._body = msgspec.json.encode(document(routes, self._needs_key))
        return Response(self._body, media_type=_JSON)


class _Schemas:
    """The schemas of all types that the descriptions name."""

    def __init__(self, descriptions: Iterable[Description]) -> None:
        named = [kind for each in descriptions for kind in (each.body, each.answer, *each.events) if kind is not None]
        kinds = [kind for kind in named if not isinstance(kind, str)]
        kinds += [ErrorBody, AnthropicErrorBody, *HELD_TYPES]
        schemas, self.components = msgspec.json.schema_components(kinds, ref_template=_SCHEMA_REF)
        self._by_kind = list(zip(kinds, schemas, strict=True))
        for kind in kinds:
            for name, values in getattr(kind, "off_values", {}).items():
                component = self.of(kind)["$ref"].rpartition("/")[2]
                self.components[component]["properties"][name] = _refused(values)

    def of(self, kind: Any) -> Json:
        """The schema of a type, or the reference to it."""
        return next(schema for other, schema in self._by_kind if other is kind)


def _refused(values: tuple[Any, ...]) -> Json:
    """Of a field that is known only to be refused. To JSON 1.0 is 1."""
    distinct = [value for value in values if not (isinstance(value, float) and value.is_integer())]
    return {"enum": [None, *distinct], "description": "Not supported: any other value is refused."}


def _operation(method: str, path: str, description: Description, schemas: _Schemas) -> Json:
    names = PARAMETERS if description.body is not None else _OF_EVERY_REQUEST
    in_headers: list[Json] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    in_path: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    fields: Json = {
        "summary": description.summary,
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", path)]),
        "parameters": [*in_path, *in_headers],
        "responses": _responses(path, description, schemas),
    }
    if description.body is not None:
        fields["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas.of(description.body)}}}
    if path in OPEN_PATHS:
        fields["security"] = []
    return fields


def _responses(path: str, description: Description, schemas: _Schemas) -> Json:
    anthropic = is_anthropic(path)
    statuses = {*description.errors, *(_OF_WORK if description.body is not None else ())}
    if path not in OPEN_PATHS:
        statuses.update(_OF_KEYS)
    errors = {
        "default" if status is None else str(status): {
            "$ref": f"#/components/responses/{_error_name(status, anthropic)}"
        }
        for status in (*sorted(statuses), None)
    }
    return {"200": _answer(description, anthropic, schemas), **errors}


def _answer(description: Description, anthropic: bool, schemas: _Schemas) -> Json:
    text, content = "The answer", dict[str, Json]()
    if isinstance(description.answer, str):
        content[description.answer] = {"schema": {"type": "string"}}
    else:
        content[_JSON] = {"schema": schemas.of(description.answer)}
    if description.events:
        text = "The answer; with `stream` as server-sent events, of which the schema describes each one's data"
        kinds = (*description.events, AnthropicErrorBody if anthropic else ErrorBody)
        content[_EVENTS] = {"schema": {"anyOf": [schemas.of(kind) for kind in kinds]}}
    return {"description": text, "headers": _headers(anthropic, *description.headers), "content": content}


def _error(status: int | None, anthropic: bool, schemas: _Schemas) -> Json:
    more = {401: ("WWW-Authenticate",)}.get(status or 0, ("Retry-After",) if status in _TRY_AGAIN else ())
    return {
        "description": "An error" if status is None else ERRORS[status],
        "headers": _headers(anthropic, *more),
        "content": {_JSON: {"schema": schemas.of(AnthropicErrorBody if anthropic else ErrorBody)}},
    }


def _error_name(status: int | None, anthropic: bool) -> str:
    return f"{'Anthropic' if anthropic else ''}Error{status or ''}"


def _headers(anthropic: bool, *more: str) -> Json:
    names = ("x-request-id", *(("request-id",) if anthropic else ()), *more)
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _security(optional: bool) -> list[Json]:
    schemes: list[Json] = [{name: []} for name in _SECURITY_SCHEMES]
    return [{}, *schemes] if optional else schemes

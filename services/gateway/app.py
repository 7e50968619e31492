"""The HTTP application: which path leads where, and how errors outside the endpoints look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.gateway.admission import Admission
from services.gateway.api.chat import ChatDialect
from services.gateway.api.completions import CompletionDialect
from services.gateway.api.embeddings import EmbeddingsEndpoint
from services.gateway.api.generation import GenerationEndpoint
from services.gateway.api.messages.endpoints import CountTokensEndpoint, MessagesDialect
from services.gateway.api.models import ModelsEndpoints
from services.gateway.api.openapi import OpenApiEndpoint
from services.gateway.api.operations import OperationsEndpoints
from services.gateway.api.reading import FormatSettings
from services.gateway.api.responses.dialect import ResponseDialect
from services.gateway.api.tokenize import DetokenizeEndpoint, TokenizeEndpoint
from services.gateway.errors import ApiError
from services.gateway.gateway import Gateway
from services.gateway.middleware import RequestEdge, error_form_of


def make_app(gateway: Gateway) -> Starlette:
    """The ASGI application of one gateway."""
    settings = gateway.settings
    formats = FormatSettings(settings.tool_call_format, settings.reasoning_format)
    models, operations = ModelsEndpoints(gateway), OperationsEndpoints(gateway)
    openapi = OpenApiEndpoint(needs_key=gateway.api_keys is not None)
    routes = [
        Route("/", operations.index),
        Route("/v1/chat/completions", GenerationEndpoint(gateway, ChatDialect(formats)), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(gateway, CompletionDialect()), methods=["POST"]),
        Route("/v1/responses", GenerationEndpoint(gateway, ResponseDialect(formats)), methods=["POST"]),
        Route("/v1/embeddings", EmbeddingsEndpoint(gateway), methods=["POST"]),
        Route("/v1/messages", GenerationEndpoint(gateway, MessagesDialect(formats)), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountTokensEndpoint(gateway), methods=["POST"]),
        Route("/tokenize", TokenizeEndpoint(gateway), methods=["POST"]),
        Route("/detokenize", DetokenizeEndpoint(gateway), methods=["POST"]),
        Route("/v1/models", models.list),
        Route("/v1/models/{model:path}", models.get),
        Route("/health", operations.health),
        Route("/ready", operations.ready),
        Route("/version", operations.version),
        Route("/openapi.json", openapi.get),
        Route("/metrics", operations.metrics),
        Route("/debug/read_out", operations.read_out),
    ]
    handlers: Mapping[Any, Callable[[Request, Exception], Response]] = {
        HTTPException: _http_exception,
        ApiError: _api_error,
        Exception: _unexpected,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, middleware=_middleware(gateway))
    app.router.redirect_slashes = False  # a path is right or it is 404
    return app


def _middleware(gateway: Gateway) -> list[Middleware]:
    """From the outside in. A browser's preflight request has no key."""
    edge = Middleware(RequestEdge, metrics=gateway.metrics)
    admission = Middleware(Admission, keys=gateway.api_keys, metrics=gateway.metrics)
    origins = gateway.settings.cors_origin_list
    if not origins:
        return [edge, admission]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "request-id", "server-timing", "retry-after"],
    )
    return [edge, cors, admission]


def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = Response(error_form_of(request.scope).body(error), error.status, media_type="application/json")
    response.raw_headers.extend(error.headers())
    return response


def _unexpected(request: Request, _error: Exception) -> Response:
    """A fault of ours outside the endpoints; Starlette raises it again, for the log."""
    return _api_error(request, ApiError(500, "internal error", kind="server_error", code="internal"))


def _http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405 in the form of the path's API."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    stored = path.startswith(f"{ResponseDialect.path}/")
    hint = "no responses are stored here" if stored else "GET / lists those that there are"
    texts = {404: f"unknown path: {path}; {hint}", 405: f"{method} is not allowed for {path}"}
    codes = {404: "unknown_path", 405: "method_not_allowed"}
    api_error = ApiError(
        error.status_code, texts.get(error.status_code, error.detail), code=codes.get(error.status_code)
    )
    response = _api_error(request, api_error)
    response.headers.update(error.headers or {})
    return response

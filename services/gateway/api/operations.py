"""What operators and tests ask: GET /, /health, /ready, /version, /metrics, /debug/read_out."""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services import __version__
from services.gateway.errors import ApiError
from services.gateway.gateway import Gateway
from services.gateway.middleware import path_of


class Index(TypedDict):
    """What there is: `METHOD path` of every route."""

    name: Literal["postroad"]
    paths: list[str]


class Health(TypedDict):
    """The process is alive."""

    status: Literal["ok"]


class Ready(TypedDict):
    """A request would be served now."""

    status: Literal["ready"]


class Version(TypedDict):
    """The version of Postroad."""

    version: str


class ReadOut(TypedDict):
    """What the gateway holds; every figure of `requests` is 0 when it is idle."""

    requests: dict[str, int]
    counters: dict[str, int]


class OperationsEndpoints:
    """None of them waits for a station."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def index(self, request: Request) -> Response:
        """What there is: method and path of every route."""
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        paths = [
            f"{method} {path_of(route)}"
            for route in routes
            for method in sorted(route.methods or ())
            if method != "HEAD"
        ]
        index: Index = {"name": "postroad", "paths": paths}
        return _json(index)

    async def health(self, _request: Request) -> Response:
        """200: the process is alive."""
        health: Health = {"status": "ok"}
        return _json(health)

    async def ready(self, _request: Request) -> Response:
        """200 only when a request would be served now; otherwise ApiError 503 that says what is missing."""
        if self._gateway.draining:
            raise _not_ready("the gateway is about to stop", "draining")
        if missing := self._gateway.stations.missing:
            raise _not_ready(f"not serving: {', '.join(missing)}", "not_ready")
        ready: Ready = {"status": "ready"}
        return _json(ready)

    async def version(self, _request: Request) -> Response:
        """The version of Postroad, in vLLM's form."""
        answer: Version = {"version": __version__}
        return _json(answer)

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text."""
        return Response(generate_latest(self._gateway.registry), media_type=CONTENT_TYPE_LATEST)

    async def read_out(self, _request: Request) -> Response:
        """What the gateway holds, in the form of `postroad.v1.ReadOutResponse`."""
        read_out = self._gateway.read_out()
        held: ReadOut = {"requests": read_out["requests"], "counters": read_out["counters"]}
        return _json(held)


def _not_ready(message: str, code: str) -> ApiError:
    return ApiError(503, message, kind="server_error", code=code, retry_after=1)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

"""Around every request: its id, in the request's scope and in the answer's headers, and the count of answers."""

from __future__ import annotations

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.common.request_context import REQUEST_ID_KEY, accept_request_id
from services.gateway.error_forms import ErrorForm, error_form, is_anthropic
from services.gateway.metrics import GatewayMetrics
from services.gateway.record import CLIENT_CLOSED

_HEADER = REQUEST_ID_KEY.encode()
_ANTHROPIC_HEADER = b"request-id"  # where clients of that API look for the id
_SCOPE_KEY = "postroad.request_id"


def request_id_of(scope: Scope) -> str:
    """The request's id."""
    return str(scope[_SCOPE_KEY])


def error_form_of(scope: Scope) -> ErrorForm:
    """The form of the request's errors."""
    return error_form(scope["path"], request_id_of(scope))


def path_of(route: Route) -> str:
    """A route's path as the documentation writes it; `{model:path}` is Starlette's form."""
    return route.path.replace(":path", "")


class RequestEdge:
    """Plain ASGI, since it stands in the way of every event of a stream."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = accept_request_id(_header(scope, _HEADER))
        scope[_SCOPE_KEY] = request_id
        headers = [(_HEADER, request_id.encode())]
        if is_anthropic(scope["path"]):
            headers.append((_ANTHROPIC_HEADER, request_id.encode()))
        status = CLIENT_CLOSED

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            route: Route | None = scope.get("route")
            self._metrics.answered("other" if route is None else path_of(route), status)


def _header(scope: Scope, name: bytes) -> str | None:
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1") if values else None

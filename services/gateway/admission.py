"""In front of the routes: asks for an API key, where keys are set, and holds its limits."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.api_keys import ApiKey, ApiKeys
from services.gateway.errors import ApiError
from services.gateway.metrics import GatewayMetrics
from services.gateway.middleware import error_form_of
from services.gateway.record import CLIENT_CLOSED
from services.gateway.reply import Reply

# What orchestrators, scrapers and people look at; everything else does work or tells what is served.
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/version", "/openapi.json", "/metrics", "/debug/read_out"})
_SCOPE_KEY = "postroad.api_key"
_BEARER = "bearer "


def api_key_of(scope: Scope) -> ApiKey | None:
    """The key that the request was admitted with; None where no keys are set."""
    key: ApiKey | None = scope.get(_SCOPE_KEY)
    return key


def _token_of(scope: Scope) -> str | None:
    """The token of `Authorization: Bearer`, as OpenAI's clients send it, or of `x-api-key`, as Anthropic's do."""
    headers: dict[bytes, str] = {name: value.decode("latin-1") for name, value in scope["headers"]}
    authorization = headers.get(b"authorization", "")
    if authorization.lower().startswith(_BEARER):
        return authorization[len(_BEARER) :].strip()
    return headers.get(b"x-api-key")


class Admission:
    """Plain ASGI, since it stands in the way of every event of a stream."""

    def __init__(self, app: ASGIApp, keys: ApiKeys | None, metrics: GatewayMetrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys is None or scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            key = self._keys.check(_token_of(scope))
        except ApiError as error:
            await Reply(send, error_form_of(scope)).error(error)
            return
        await self._serve(key, scope, receive, send)

    async def _serve(self, key: ApiKey, scope: Scope, receive: Receive, send: Send) -> None:
        status = CLIENT_CLOSED

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope[_SCOPE_KEY] = key
        try:
            with key.request():
                await self._app(scope, receive, send_and_note)
        except ApiError as error:
            await Reply(send_and_note, error_form_of(scope)).error(error)
        finally:
            self._metrics.answered_key(key.name, status)

"""Reads a request's body, up to a limit."""

from __future__ import annotations

from starlette.types import Receive, Scope

from services.gateway.errors import ClientDisconnected, body_too_large


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to exceed `limit` bytes, or ClientDisconnected."""
    if _declared_length(scope) > limit:  # before a single byte is taken
        raise body_too_large(limit)
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if len(body) > limit:
            raise body_too_large(limit)
        more = message.get("more_body", False)
    return bytes(body)

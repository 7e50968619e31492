"""Reads a request's body, up to a limit."""

from __future__ import annotations

from starlette.types import Receive, Scope

from services.gateway.errors import ClientDisconnected, body_too_large, unsupported


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def _refuse_encoded(scope: Scope) -> None:
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise unsupported(
                "content-encoding", f"{value.decode('latin-1')!r} is not supported; send the body as it is"
            )


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to exceed `limit` bytes, 400 for a compressed one, or
    ClientDisconnected."""
    _refuse_encoded(scope)
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

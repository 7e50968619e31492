"""The HTTP answer to one request: JSON or a stream of server-sent events, written straight to ASGI's `send`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from starlette.types import Send

from services.gateway.error_forms import ErrorForm
from services.gateway.errors import ApiError

Headers = Iterable[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies of nginx's kind would collect the events
)


class Reply:
    """Sends exactly one answer, errors in the form given. `status` is None until its headers are sent."""

    def __init__(self, send: Send, errors: ErrorForm) -> None:
        self._send = send
        self._errors = errors
        self.status: int | None = None
        self._failure: Callable[[ApiError], bytes] | None = None  # while a stream is open

    async def json(self, body: bytes, status: int = 200, headers: Headers = ()) -> None:
        """Sends the whole answer."""
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, [_JSON, length, *headers])
        await self._body(body, last=True)

    async def open_stream(self, headers: Headers = (), failure: Callable[[ApiError], bytes] | None = None) -> None:
        """Sends status 200 and the headers of an event stream.

        `failure` makes its last events should it fail; without it, an error is one event.
        """
        self._failure = failure or self._errors.event
        await self._start(200, [*_EVENT_STREAM, *headers])

    def write(self, events: bytes) -> Awaitable[None]:
        """Sends one or more events."""
        return self._body(events, last=False)

    async def close(self, events: bytes) -> None:
        """Sends the last events and ends the stream."""
        self._failure = None
        await self._body(events, last=True)

    async def error(self, error: ApiError) -> None:
        """Answers with the error: by its status where none was sent yet, otherwise as the stream's last events."""
        if self.status is None:
            await self.json(self._errors.body(error), error.status, error.headers())
        elif self._failure is not None:
            await self.close(self._failure(error))

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _body(self, body: bytes, last: bool) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": body, "more_body": not last})

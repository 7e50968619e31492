"""What a client may do to one connection, on top of uvicorn's HTTP/1.1.

Every byte that a client makes the gateway keep, and every second that it may hold a connection without using it, has a
bound:

- a connection over `ConnectionLimits.connections` is refused before anything of it is parsed;
- a request's line and headers have a size and a time;
- one request at a time: what a client sends behind a request that is being answered is thrown away, and the connection
  closes after that answer. Reading goes on meanwhile, since only a reader notices that the client is gone;
- an answer that begins before the request's body has ended closes the connection, too: the rest may be of any length;
- a client that does not take what was written to it is cut off.

A wish for another protocol (`Upgrade: h2c`, as Java's HttpClient and `curl --http2` send it) is ignored, as HTTP/1.1
allows.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.common.request_context import REQUEST_ID_KEY, accept_request_id
from services.gateway.error_forms import OpenAIErrors
from services.gateway.errors import ApiError

_REQUEST_ID = REQUEST_ID_KEY.encode()
_RESET = struct.pack("ii", 1, 0)  # struct linger: no time for what is unsent


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Sizes in bytes, times in seconds."""

    connections: int
    header_bytes: int  # request line and headers; also what a chunked body may have between two pieces of data
    header_timeout: float  # from a connection's or a request's first byte to the end of the headers
    stall_timeout: float = 10.0  # without the client taking a byte of an answer that has ended
    linger: float = 2.0  # for a client that is still sending to read its answer before the connection is reset


class _AnswerTransport:
    """What an answer is written to: the connection's transport, with a `close` of its own."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `refused` is called with the status of each error that is answered here, outside the application.

    The answers themselves take uvicorn's way: an event of a stream costs nothing here.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, refused: Callable[[int], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._refused = refused
        self._unused_bytes = 0  # since the last that ended a head or belonged to a body
        self._in_head = True
        self._discarding = False  # what still comes is thrown away
        self._may_keep_alive = False  # once the body has ended
        self._is_head_repeated = False  # what the parser reads now is the head of the request that it is in already
        self._head_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None  # of an answer that has ended

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._discarding = True
            self._write_refusal(_too_many_connections(self._limits.connections))
            self._close()  # without lingering: descriptors are what is short
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._may_keep_alive = False
        super().shutdown()

    # -- what the client sends

    def data_received(self, data: bytes) -> None:
        if not self._discarding and self._is_answering:
            self._discard_rest()
        if self._discarding:
            return
        self._unset_keepalive_if_required()
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        rest = memoryview(data)
        while rest and not self._discarding:
            room = self._limits.header_bytes - self._unused_bytes
            piece, rest = rest[:room], rest[room:]
            self._unused_bytes += len(piece)
            self._parse(piece)
            if self._unused_bytes >= self._limits.header_bytes and not self._discarding:
                self._refuse(_headers_too_large(self._limits.header_bytes))

    @property
    def _is_answering(self) -> bool:
        """Whether a whole request has come whose answer is not complete."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _parse(self, data: memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._discarding:
                self._refuse(_invalid_http())

    def _parse_without_upgrade(self, data: memoryview) -> None:
        """Goes on behind the head of a request that wishes for another protocol.

        The parser takes all that follows for that protocol. Another one reads it as HTTP/1.1; of the head it is given
        again what says where the body ends.
        """
        framing = [f for f in self.headers if f[0] in (b"content-length", b"transfer-encoding")]
        head = [b"POST / HTTP/1.1", *(name + b": " + value for name, value in framing), b"", b""]
        self.parser = httptools.HttpRequestParser(self)
        self._is_head_repeated = True
        self.parser.feed_data(b"\r\n".join(head))
        self._is_head_repeated = False
        self._parse(data)

    def on_message_begin(self) -> None:
        if self._is_head_repeated:
            return
        if self._is_answering:
            self._discard_rest()
            raise _PipelinedRequest  # stops the parser in the middle of the bytes that it was given
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_head_repeated:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise it is a trailer, or of a head that is repeated
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_head_repeated:
            return
        self._in_head = False
        self._unused_bytes = 0
        self._cancel_timers()
        if self.parser.get_http_version() != "1.1":
            self.app = self._serve_without_chunks
        super().on_headers_complete()
        cycle = self.cycle
        cycle.transport = _AnswerTransport(self.transport, self._close_after_answer)  # type: ignore[assignment]
        self._may_keep_alive, cycle.keep_alive = cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the parser that says so has not seen the body
        super().on_message_complete()
        if not self.cycle.response_started:  # otherwise it has announced the close
            self.cycle.keep_alive = self._may_keep_alive

    async def _serve_without_chunks(self, scope: Scope, receive: Receive, send: Send) -> None:
        """HTTP/1.0 has no chunked encoding: the end of the connection is the end of an answer without a length."""
        cycle = self.cycle
        cycle.chunked_encoding = False

        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self.config.loaded_app(scope, receive, send_plain)

    # -- the end of an answer, and of the connection

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self._end_timer is None:
            self._watch_unsent()

    def _discard_rest(self) -> None:
        """Keeps nothing more of what the client sends, and closes after the answer in progress."""
        self._discarding = True
        self._may_keep_alive = self.cycle.keep_alive = False

    def _close_after_answer(self) -> None:
        if self.transport.is_closing():
            return
        if self._discarding or self.cycle.more_body:
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        """Closes our side at once and the connection a little later.

        Bytes that come for a closed connection make the system reset it, and the client may lose an answer that it has
        not read yet.
        """
        self._discarding = True
        self._cancel_timers()
        self.transport.write_eof()
        self.flow.resume_reading()
        self._end_timer = self.loop.call_later(self._limits.linger, self._close)

    def _close(self) -> None:
        """Closes the connection once everything is sent, or when the client does not take it."""
        self._cancel_timers()
        self.transport.close()
        self._watch_unsent()

    def _watch_unsent(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            self._end_timer = self.loop.call_later(self._limits.stall_timeout, self._abort_if_stalled, unsent)

    def _abort_if_stalled(self, unsent: int) -> None:
        self._end_timer = None
        if self.transport.get_write_buffer_size() >= unsent:
            # With a reset: the system would keep what it has taken for the client, megabytes, for some minutes.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        else:
            self._watch_unsent()

    # -- times

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.header_timeout, self._head_timed_out)

    def _head_timed_out(self) -> None:
        if self._unused_bytes:
            self._refuse(_headers_too_slow(self._limits.header_timeout))
        else:
            self._close()

    def _cancel_timers(self) -> None:
        for timer in (self._head_timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._end_timer = None

    # -- errors outside the application

    def _refuse(self, error: ApiError) -> None:
        """Answers with the error, unless another answer has begun, and closes. A request in progress is given up."""
        cycle = self.cycle
        in_progress = cycle is not None and not cycle.response_complete
        if in_progress:
            cycle.disconnected = True
            cycle.message_event.set()
        if not (in_progress and cycle.response_started):
            self._write_refusal(error)
        self._linger()

    def _write_refusal(self, error: ApiError) -> None:
        given = dict(self.headers or ()).get(_REQUEST_ID, b"").decode("latin-1")
        body = OpenAIErrors().body(error)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *error.headers(),
            (_REQUEST_ID, accept_request_id(given).encode()),
            (b"connection", b"close"),
        ]
        status_line = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()
        lines = [status_line, *(name + b": " + value for name, value in headers), b"", body]
        self.transport.write(b"\r\n".join(lines))
        self._refused(error.status)


class _PipelinedRequest(Exception):
    """Out of a callback of the parser."""


def _invalid_http() -> ApiError:
    return ApiError(400, "the bytes received are not an HTTP/1.1 request", code="invalid_http")


def _headers_too_large(limit: int) -> ApiError:
    message = f"the request line and headers are larger than the limit of {limit} bytes"
    return ApiError(431, message, code="headers_too_large")


def _headers_too_slow(limit: float) -> ApiError:
    return ApiError(408, f"the headers did not arrive within {limit:g} seconds", code="request_timeout")


def _too_many_connections(limit: int) -> ApiError:
    message = f"the server has its {limit} connections; try again"
    return ApiError(503, message, kind="server_error", code="too_many_connections", retry_after=1)

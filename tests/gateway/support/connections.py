"""Clients on plain sockets, and an application served by the gateway's protocol on the event loop that it runs on."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.http_protocol import BoundedHttpProtocol, ConnectionLimits
from tests.gateway.support.running import PATIENCE, RawClient, until
from tests.support.ports import free_ports

_TCP_CLOSE = 7  # linux/tcp.h
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
CHAT = "/v1/chat/completions"


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Transports differ between event loops."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()


async def read_to_end(client: RawClient) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await client.reader.read()


async def reset(client: RawClient) -> None:
    """Ends the connection with RST."""
    own = client.writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


async def connect_without_reading(port: int) -> RawClient:
    """A client that takes nothing from its socket, and whose socket takes little."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
    client = RawClient(*await asyncio.open_connection(sock=own))
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    return client


def is_reset(client: RawClient) -> bool:
    """Whether the server has reset the connection, which a client that does not read is not told."""
    own: socket.socket = client.writer.get_extra_info("socket")
    return own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE


async def send_for_ever(client: RawClient) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            client.writer.write(b"x" * 65536)
            await client.writer.drain()


def error_of(answer: bytes, status: int) -> Any:
    """OpenAI's error object of an answer that ends its connection."""
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nx-request-id: " in head
    assert b"\r\nconnection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


class Served:
    """An application behind the protocol; `refused` are the statuses of errors answered outside of it."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self.port = free_ports(1)[0]
        self.refused: list[int] = []
        self.requests = 0
        self._app = app
        protocol = functools.partial(BoundedHttpProtocol, limits=limits, refused=self.refused.append)
        config = uvicorn.Config(
            self._count,
            port=self.port,
            http=cast("type[asyncio.Protocol]", protocol),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=75,
        )
        self.server = uvicorn.Server(config)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        await self._app(scope, receive, send)

    @property
    def connections(self) -> list[Any]:
        return list(self.server.server_state.connections)


@asynccontextmanager
async def serving(app: ASGIApp, **limits: Any) -> AsyncIterator[Served]:
    given = {"connections": 100, "header_bytes": 65536, "header_timeout": 30.0, **limits}
    served = Served(app, ConnectionLimits(**given))
    task = asyncio.create_task(served.server._serve())
    await until(lambda: served.server.started)
    try:
        yield served
    finally:
        for connection in served.connections:
            connection.transport.abort()
        served.server.should_exit = True
        await task


def answering(*parts: bytes, length: bool = True) -> ASGIApp:
    """Answers at once, without reading the request's body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", str(sum(map(len, parts))).encode())] if length else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app

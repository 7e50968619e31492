"""What a client may do to a connection, through plain sockets and on the event loop that the gateway runs on."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.http_protocol import BoundedHttpProtocol, ConnectionLimits
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import PATIENCE, RawClient, events, running_gateway, until
from tests.gateway.support.stations import delta, end, first
from tests.support.ports import free_ports

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


async def silent(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
    await asyncio.Event().wait()
    yield delta("never")


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


@on_uvloop
async def test_requests_one_after_another_share_a_connection() -> None:
    async with serving(answering(b"who", b"le")) as served:
        client = await RawClient.connect(served.port)
        for _ in range(3):
            client.writer.write(GET)
            assert b"connection: close" not in await client.read_until(b"whole")
        await client.close()
        assert served.requests == 3


@pytest.mark.parametrize("leave", [RawClient.close, reset])
@on_uvloop
async def test_fieldbug_20_a_client_that_pipelined_a_request_and_left_is_noticed(leave: Any) -> None:
    async with running_gateway() as gateway:
        detokenizer = gateway.stations.detokenizer
        detokenizer.script = silent
        client = await RawClient.connect(gateway.port)
        await client.post(CHAT, chat())
        await asyncio.wait_for(detokenizer.entered.wait(), PATIENCE)
        client.writer.write(GET * 10_000)
        await client.writer.drain()
        await leave(client)
        await asyncio.wait_for(detokenizer.left.wait(), PATIENCE)
        await gateway.assert_idle()
        assert [line["outcome"] for line in gateway.request_lines()] == ["cancelled"]


@pytest.mark.parametrize("together", [True, False])
@on_uvloop
async def test_of_pipelined_requests_the_first_is_answered_and_the_connection_closes(together: bool) -> None:
    release = asyncio.Event()

    async def held(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("a")
        await release.wait()
        yield end("b")

    async with running_gateway() as gateway:
        gateway.stations.detokenizer.script = held
        client = await RawClient.connect(gateway.port)
        await client.post(CHAT, chat(stream=True) + (GET if together else b""), len(chat(stream=True)))
        answer = await client.read_until(b'"content":"a"')
        client.writer.write(GET)
        await client.writer.drain()
        await gateway.is_ready()  # a turn of the loop that serves both connections
        release.set()
        answer += await read_to_end(client)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await client.close()


@on_uvloop
async def test_answers_that_nobody_reads_do_not_pile_up() -> None:
    async with serving(answering(b"x" * 1000)) as served:
        client = await connect_without_reading(served.port)
        client.writer.write(GET * 100_000)
        await until(lambda: served.requests > 0)
        await until(lambda: not served.connections)
        assert served.requests == 1
        client.writer.transport.abort()


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nx: ", b"GET / HTTP/1.1\r\n"])
@on_uvloop
async def test_headers_over_the_limit_get_431(start: bytes) -> None:
    async with serving(answering(b"x"), header_bytes=10_000) as served:
        client = await RawClient.connect(served.port)
        client.writer.write(start)
        for _ in range(400):
            client.writer.write(b"y: z\r\n" * 20 if start.endswith(b"\n") else b"y" * 120)
        error = error_of(await read_to_end(client), 431)
        assert error["code"] == "headers_too_large"
        assert "10000" in error["message"]
        assert (served.requests, served.refused) == (0, [431])
        await client.close()


@on_uvloop
async def test_headers_as_large_as_the_limit_are_served_with_a_body_behind_them() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        await answering(str(len(body)).encode() + b" bytes")(scope, receive, send)

    async with serving(echo, header_bytes=2000) as served:
        head = b"POST / HTTP/1.1\r\ncontent-length: 300000\r\nx: "
        head += b"y" * (2000 - len(head) - 4) + b"\r\n\r\n"
        client = await RawClient.connect(served.port)
        for _ in range(2):
            client.writer.write(head + b"b" * 300_000)
            await client.read_until(b"300000 bytes")
        await client.close()


@pytest.mark.parametrize("tail", [b"0\r\n" + b"t: u\r\n" * 10_000, b"0\r\nt: " + b"u" * 60_000, b"5;" + b"e" * 60_000])
@on_uvloop
async def test_trailers_and_chunk_extensions_have_the_bound_of_headers(tail: bytes) -> None:
    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        assert len(scope["headers"]) == 2

    async with serving(read, header_bytes=10_000) as served:
        client = await RawClient.connect(served.port)
        client.writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + tail)
        assert error_of(await read_to_end(client), 431)["code"] == "headers_too_large"
        await client.close()


@on_uvloop
async def test_a_connection_that_sends_nothing_is_closed() -> None:
    async with serving(answering(b"x"), header_timeout=0.05) as served:
        client = await RawClient.connect(served.port)
        assert await read_to_end(client) == b""
        await client.close()


@pytest.mark.parametrize("before", [b"", GET])
@on_uvloop
async def test_headers_that_do_not_end_get_408(before: bytes) -> None:
    async with serving(answering(b"x"), header_timeout=0.3) as served:
        client = await RawClient.connect(served.port)
        if before:
            client.writer.write(before)
            await client.read_until(b"\r\n\r\nx")
        client.writer.write(b"GET / HTTP/1.1\r\nhost:")
        assert error_of(await read_to_end(client), 408)["code"] == "request_timeout"
        await client.close()


@on_uvloop
async def test_the_time_for_headers_does_not_bound_an_answer() -> None:
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await answering(b"late")(scope, receive, send)

    async with serving(slow, header_timeout=0.05) as served:
        client = await RawClient.connect(served.port)
        client.writer.write(GET)
        await until(lambda: served.requests == 1)
        other = await RawClient.connect(served.port)
        assert await read_to_end(other) == b"", "the time has passed for a connection that is younger"
        release.set()
        await client.read_until(b"late")
        await client.close()
        await other.close()


@pytest.mark.parametrize("complete", [True, False], ids=["finished", "failed in mid-stream"])
@on_uvloop
async def test_a_client_that_does_not_read_is_cut_off_after_its_answer(complete: bool) -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 20_000_000, "more_body": not complete})

    async with serving(large, stall_timeout=0.1) as served:
        client = await connect_without_reading(served.port)
        client.writer.write(GET)
        await until(lambda: served.requests == 1)
        await until(lambda: not served.connections)
        client.writer.transport.abort()


@on_uvloop
async def test_a_client_that_reads_slowly_gets_its_answer() -> None:
    async with serving(answering(b"x" * 20_000_000)) as served:
        client = await connect_without_reading(served.port)
        client.writer.write(GET)
        await until(lambda: served.requests == 1)
        [connection] = served.connections
        unsent = connection.transport.get_write_buffer_size()
        connection._abort_if_stalled(unsent + 1)  # as when the client took a byte since the last look
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE):
            await client.reader.readuntil(b"\r\n\r\n")
            await client.reader.readexactly(20_000_000)
        await client.close()


@on_uvloop
async def test_a_client_that_does_not_read_does_not_outlast_the_gateways_stop() -> None:
    async def flood(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("x")
        while True:
            yield delta("y" * 100_000)

    async with running_gateway(drain_timeout=0.1) as gateway:
        gateway.stations.detokenizer.script = flood
        client = await connect_without_reading(gateway.port)
        await client.post(CHAT, chat(stream=True))
        await asyncio.wait_for(gateway.stations.detokenizer.entered.wait(), PATIENCE)
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    assert not (await read_to_end(client)).endswith(b"0\r\n\r\n")
    await client.close()


@on_uvloop
async def test_a_connection_over_the_limit_gets_503() -> None:
    async with serving(answering(b"x"), connections=2) as served:
        clients = [await RawClient.connect(served.port) for _ in range(2)]
        await until(lambda: len(served.connections) == 2)
        refused = await RawClient.connect(served.port)
        answer = await read_to_end(refused)
        assert error_of(answer, 503)["code"] == "too_many_connections"
        assert b"\r\nretry-after: " in answer
        await refused.close()
        await until(lambda: len(served.connections) == 2)
        clients[0].writer.write(GET)
        await clients[0].read_until(b"\r\n\r\nx")
        await clients[1].close()
        await until(lambda: len(served.connections) == 1)
        again = await RawClient.connect(served.port)
        again.writer.write(GET)
        await again.read_until(b"\r\n\r\nx")
        for client in (clients[0], again):
            await client.close()


@on_uvloop
async def test_an_answer_before_the_bodys_end_closes_the_connection() -> None:
    async with running_gateway(max_body_bytes=1000) as gateway:
        for path, status in ((CHAT, b"413"), ("/nowhere", b"404")):
            client = await RawClient.connect(gateway.port)
            await client.post(path, b" " * 100_000, length=10**12)
            answer = await read_to_end(client)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"\r\nconnection: close" in answer
            await client.close()
        await gateway.assert_idle()


@on_uvloop
async def test_a_client_that_goes_on_sending_after_its_answer_is_cut_off() -> None:
    async with serving(answering(b"enough"), linger=0.1) as served:
        client = await RawClient.connect(served.port)
        await client.post("/", b"", length=10**12)
        await client.read_until(b"enough")
        with pytest.raises(ConnectionError):
            await send_for_ever(client)


@on_uvloop
async def test_a_body_that_comes_too_slowly_gets_408() -> None:
    async with running_gateway(request_timeout=0.2) as gateway:
        client = await RawClient.connect(gateway.port)
        await client.post(CHAT, b'{"m', length=100)
        assert error_of(await read_to_end(client), 408)["code"] == "request_timeout"
        await client.close()
        await gateway.assert_idle()
        assert [line["outcome"] for line in gateway.request_lines()] == ["request_timeout"]


@on_uvloop
async def test_http_1_0_has_no_chunks() -> None:
    async with running_gateway() as gateway:
        for stream in (False, True):
            client = await RawClient.connect(gateway.port)
            body = chat(stream=stream)
            client.writer.write(b"POST %s HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
            head, answer = (await read_to_end(client)).split(b"\r\n\r\n", 1)
            assert b"transfer-encoding" not in head
            assert b"\r\nconnection: close" in head
            if stream:
                assert events(answer.decode())[-1] == "[DONE]"
            else:
                assert b"\r\ncontent-length: %d\r\n" % len(answer) in head
                assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello world"
            await client.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
@on_uvloop
async def test_bytes_that_are_no_request_get_400(sent: bytes) -> None:
    async with running_gateway() as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(sent)
        assert error_of(await read_to_end(client), 400)["code"] == "invalid_http"
        await client.close()
        assert (
            'postroad_http_requests_total{path="other",status="400"} 1.0' in (await gateway.http.get("/metrics")).text
        )


@on_uvloop
async def test_an_error_outside_the_application_keeps_the_clients_request_id() -> None:
    async with serving(answering(b"x")) as served:
        client = await RawClient.connect(served.port)
        client.writer.write(b"GET / HTTP/1.1\r\nX-Request-Id: mine-1\r\nhost: x\r\nbad header\r\n\r\n")
        assert b"\r\nx-request-id: mine-1\r\n" in await read_to_end(client)
        await client.close()


@on_uvloop
async def test_a_body_with_broken_chunks_ends_its_request() -> None:
    async with running_gateway() as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        await until(lambda: len(gateway.gateway.live) == 1)
        client.writer.write(b"zz\r\n")
        assert error_of(await read_to_end(client), 400)["code"] == "invalid_http"
        await client.close()
        await gateway.assert_idle()
        assert [line["outcome"] for line in gateway.request_lines()] == ["cancelled"]


H2C = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


def pieces_of(body: bytes, framing: str) -> tuple[str, bytes]:
    """The framing's header and the body's bytes."""
    if framing == "content-length":
        return f"content-length: {len(body)}\r\n", body
    half = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
    return "transfer-encoding: chunked\r\n", chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
@pytest.mark.parametrize("cuts", [[], [0], [1, 30], [40]], ids=str)
async def test_the_body_of_a_request_that_wishes_for_http2_is_read(framing: str, cuts: list[int]) -> None:
    """`cuts`: where the body is torn apart; 0 tears it from the head."""
    async with running_gateway() as gateway:
        client = await RawClient.connect(gateway.port)
        for content in ("first", "second"):
            header, body = pieces_of(chat(user=content * 9), framing)
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{header}{H2C}\r\n".encode()
            whole = head + body
            places = [0, *(len(head) + cut for cut in cuts), len(whole)]
            for start, stop in itertools.pairwise(places):
                client.writer.write(whole[start:stop])
                await client.writer.drain()
                for _ in range(3):  # turns of the loop that the server runs on: it reads each piece by itself
                    await asyncio.sleep(0)
            answer = await client.read_until(b"}}}")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            assert b"connection: close" not in answer
        await client.close()
        await gateway.assert_idle()


async def test_a_request_without_a_body_that_wishes_for_another_protocol_is_served() -> None:
    async with running_gateway() as gateway:
        client = await RawClient.connect(gateway.port)
        for wish in (H2C, "connection: upgrade\r\nupgrade: websocket\r\n", ""):
            client.writer.write(f"GET /health HTTP/1.1\r\nhost: x\r\n{wish}\r\n".encode())
            assert (await client.read_until(b'"ok"}')).startswith(b"HTTP/1.1 200 ")
        await client.close()


async def test_limits_hold_for_a_request_that_wishes_for_another_protocol() -> None:
    async with running_gateway(max_body_bytes=1000) as gateway:
        client = await RawClient.connect(gateway.port)
        await client.post(CHAT, b"x", length=1001, headers=H2C)
        assert error_of(await read_to_end(client), 413)["code"] == "too_large"
        client = await RawClient.connect(gateway.port)
        client.writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n{H2C}\r\nZZ\r\n".encode()
        )
        assert error_of(await read_to_end(client), 400)["code"] == "invalid_http"


async def test_connect_is_refused() -> None:
    async with running_gateway() as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n" + GET)
        assert error_of(await read_to_end(client), 400)["code"] == "invalid_http"

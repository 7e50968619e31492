"""What a client cannot take from the gateway: headers, time, answers that it does not read, connections."""

from __future__ import annotations

import asyncio
import functools

import pytest
from starlette.types import Receive, Scope, Send

from services.gateway import server
from services.gateway.api import endpoint
from services.gateway.http_protocol import ConnectionLimits
from tests.gateway.support.connections import (
    CHAT,
    GET,
    answering,
    chat,
    connect_without_reading,
    error_of,
    is_reset,
    on_uvloop,
    read_to_end,
    send_for_ever,
    serving,
)
from tests.gateway.support.running import PATIENCE, RawClient, running_gateway, until
from tests.gateway.support.stations import flood


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


@pytest.mark.parametrize("n", [1, 3])
@on_uvloop
async def test_a_client_that_never_reads_its_stream_is_let_go_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """Nothing of its request is left while it is still there, and at last its connection goes, too."""
    monkeypatch.setattr(endpoint, "_ERROR_SEND_TIMEOUT", 0.1)
    monkeypatch.setattr(server, "ConnectionLimits", functools.partial(ConnectionLimits, stall_timeout=0.3))
    async with running_gateway(request_timeout=0.5) as gateway:
        gateway.stations.detokenizer.script = flood
        client = await connect_without_reading(gateway.port)
        await client.post(CHAT, chat(stream=True, n=n))
        await until(lambda: len(gateway.stations.detokenizer.requests) == n)
        await gateway.assert_idle()
        assert not is_reset(client)
        await until(lambda: is_reset(client))
        assert any(line["event"] == "the client does not read" for line in gateway.lines)
        [line] = gateway.request_lines()
        assert line["outcome"] == "deadline_exceeded"
        client.writer.transport.abort()


@on_uvloop
async def test_a_client_that_does_not_read_does_not_outlast_the_gateways_stop() -> None:
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

"""What a client may do to a connection: requests one after another, pipelined, broken, or for other protocols."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.connections import (
    CHAT,
    GET,
    answering,
    chat,
    connect_without_reading,
    error_of,
    on_uvloop,
    read_to_end,
    reset,
    serving,
)
from tests.gateway.support.running import PATIENCE, RawClient, events, running_gateway, until
from tests.gateway.support.stations import end, first, silent


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

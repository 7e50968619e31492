"""Clients that go away, in every phase, through HTTP and through gRPC: the engine is free by its next step."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import grpc
import pytest

from services.pb.postroad.v1 import engine_pb2_grpc
from tests.e2e.client import Client, until, user
from tests.e2e.test_scheduling import greedy, random_ids
from tests.gateway.support.connections import connect_without_reading
from tests.support.stack import Stack

PROBE = {"messages": user("Why is the sky blue?"), "temperature": 0, "max_tokens": 24}


class Rude:
    """A raw HTTP client that closes its connection whenever it likes."""

    def __init__(self, stack: Stack) -> None:
        url = urlsplit(stack.url)
        self._host, self._port = url.hostname, url.port

    async def __aenter__(self) -> Rude:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, path: str, body: dict[str, object], share: float = 1.0) -> None:
        """Sends a request, or only the first `share` of its body."""
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(payload)}\r\n\r\n"
        self._writer.write(head.encode() + payload[: int(len(payload) * share)])
        await self._writer.drain()

    async def read_events(self, count: int) -> None:
        """Reads until `count` SSE events have come, or the connection's end."""
        while count:
            line = await self._reader.readline()
            if not line:
                return
            count -= line.startswith(b"data: {")


async def running_count(client: Client) -> int:
    return (await client.read_outs())["engine"]["scheduler_running"]


async def waiting_count(client: Client) -> int:
    return (await client.read_outs())["engine"]["scheduler_waiting"]


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_fieldbug_20_a_client_that_leaves_in_decode_frees_its_sequence(real_stack: Stack, stream: bool) -> None:
    async with Client(real_stack) as client:
        before = (await client.engine_read_out()).counters
        async with Rude(real_stack) as rude:
            body = {"messages": user("Count to a million."), "max_tokens": 4000, "ignore_eos": True, "stream": stream}
            await rude.send("/v1/chat/completions", body)
            if stream:
                await rude.read_events(3)
            await until(lambda: running_count(client), 20, lambda: "never ran")
        await client.wait_idle(10)
        after = (await client.engine_read_out()).counters
        assert after["computed_tokens"] - before["computed_tokens"] < 1000  # it did not run to its end


async def test_fieldbug_20_a_client_that_leaves_in_prefill_frees_its_sequence(real_stack: Stack) -> None:
    async with Client(real_stack) as client:
        before = (await client.engine_read_out()).counters
        async with Rude(real_stack) as rude:
            await rude.send("/v1/completions", {"prompt": random_ids(31, 7000), "max_tokens": 1, "stream": True})
            await until(lambda: running_count(client), 20, lambda: "never ran")
        await client.wait_idle(10)
        after = (await client.engine_read_out()).counters
        assert after["computed_tokens"] - before["computed_tokens"] < 7000


async def test_fieldbug_20_a_client_that_leaves_the_queue_never_runs() -> None:
    """8 long requests fill the engine's places; the ninth waits and its client goes."""
    limit = 8
    long = {"max_tokens": 2000, "ignore_eos": True, "stream": True}
    with Stack(engine_flags=f"--executor scripted --step-ms 25 --max-num-seqs {limit}") as stack:
        async with Client(stack) as client, AsyncExitStack() as clients:
            for number in range(limit):
                rude = await clients.enter_async_context(Rude(stack))
                await rude.send("/v1/completions", {"prompt": random_ids(number, 4), **long})
            await until(lambda: equals(running_count(client), limit), 30, lambda: "places never filled")
            async with Rude(stack) as queued:
                await queued.send("/v1/completions", {"prompt": random_ids(999, 4), **long})
                await until(lambda: equals(waiting_count(client), 1), 20, lambda: "never queued")
            await until(lambda: equals(waiting_count(client), 0), 20, lambda: "still queued")
            assert await running_count(client) == limit
            await clients.aclose()
            await client.wait_idle()


async def equals(found: Awaitable[int], expected: int) -> bool:
    return await found == expected


async def test_a_client_that_leaves_in_mid_body_leaves_nothing_behind(real_stack: Stack) -> None:
    async with Client(real_stack) as client:
        for share in (0.0, 0.3, 0.9):
            async with Rude(real_stack) as rude:
                await rude.send("/v1/chat/completions", PROBE, share)
        await client.wait_idle(10)


async def test_a_client_that_never_reads_has_nothing_left_at_any_station_after_its_deadline(
    scripted_stack: Stack,
) -> None:
    n, limit = 32, "2"
    body = {
        "messages": user("x"),
        "max_tokens": 2000,
        "n": n,
        "logprobs": True,
        "top_logprobs": 20,
        "stream": True,
    }
    async with Client(scripted_stack) as client:
        before = (await client.engine_read_out()).counters["computed_tokens"]
        idle_client = await connect_without_reading(urlsplit(scripted_stack.url).port or 0)
        await idle_client.post(
            "/v1/chat/completions", json.dumps(body).encode(), headers=f"x-request-timeout: {limit}\r\n"
        )
        await until(lambda: equals(running_count(client), n), 10, lambda: "never ran")
        await client.wait_idle(10)  # while the connection is there, with all that the gateway has not got rid of
        computed = (await client.engine_read_out()).counters["computed_tokens"] - before
        idle_client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        rest = b""
        async with asyncio.timeout(10):
            while not rest.endswith(b"\r\n0\r\n\r\n"):
                rest += await idle_client.reader.read(1 << 20)
        idle_client.writer.close()
        assert rest.count(b'"content":[{"token"') < computed / 2, "the gateway wrote on"
        assert b'"deadline_exceeded"' in rest[-400:], "the error was waiting for the client"
        assert b"[DONE]" not in rest


async def test_fieldbug_21_25_40_after_a_storm_of_500_nothing_is_left_and_output_is_unchanged(
    real_stack: Stack,
) -> None:
    rng = random.Random(7)
    gate = asyncio.Semaphore(48)

    async def one(client: Client, number: int) -> None:
        stream, leaves = rng.random() < 0.6, rng.random() < 0.7
        body: dict[str, object] = {
            "messages": user(f"{rng.choice(('Tell', 'Ask', 'Show'))} me something about {number % 7}."),
            "max_tokens": rng.randrange(1, 12),
            "temperature": rng.choice((0, 1)),
            "stream": stream,
            "stop": rng.choice((None, ["the"], ["."])),
        }
        async with gate:
            if not leaves:
                assert (await client.post("/v1/chat/completions", **body)).status_code == 200
                return
            async with Rude(real_stack) as rude:
                await rude.send("/v1/chat/completions", body)
                if stream and rng.random() < 0.5:
                    await rude.read_events(rng.randrange(1, 4))
                else:
                    await asyncio.sleep(rng.random() * 0.2)  # any moment will do: this is the storm itself

    async with Client(real_stack) as client:
        expected = await client.text(**PROBE)
        await asyncio.gather(*(one(client, number) for number in range(500)))
        await client.wait_idle()
        assert await client.text(**PROBE) == expected


async def test_fieldbug_22_23_cancel_of_a_direct_generate_frees_its_sequence(real_stack: Stack) -> None:
    async with Client(real_stack) as client, grpc.aio.insecure_channel(real_stack.address("engine")) as channel:
        call = engine_pb2_grpc.EngineStub(channel).Generate(greedy(random_ids(8, 8), 4000))
        assert (await call.read()).token_ids
        call.cancel()
        call.cancel()  # a second cancel is harmless
        await client.wait_idle(10)


async def test_the_deadline_of_a_direct_generate_frees_its_sequence(real_stack: Stack) -> None:
    async with Client(real_stack) as client, grpc.aio.insecure_channel(real_stack.address("engine")) as channel:
        stub = engine_pb2_grpc.EngineStub(channel)
        call = stub.Generate(greedy(random_ids(9, 8), 8000), timeout=1.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await client.wait_idle(10)


async def test_fieldbug_24_the_same_request_id_twice_gives_two_whole_answers(real_stack: Stack) -> None:
    async with Client(real_stack) as client:
        bodies = [PROBE, {**PROBE, "messages": user("What is water made of?")}]
        alone = [await client.text(**body) for body in bodies]
        responses = await asyncio.gather(
            *(client.http.post("/v1/chat/completions", json=b, headers={"x-request-id": "same"}) for b in bodies)
        )
        assert [r.json()["choices"][0]["message"]["content"] for r in responses] == alone
        assert [r.headers["x-request-id"] for r in responses] == ["same", "same"]


async def test_fieldbug_26_queue_full_is_429_with_retry_after() -> None:
    flags = "--executor scripted --step-ms 50 --max-num-seqs 2 --max-waiting 3"
    with Stack(engine_flags=flags) as stack:
        async with Client(stack) as client:
            body = {"messages": user("hello"), "max_tokens": 40, "ignore_eos": True}
            responses = await asyncio.gather(*(client.post("/v1/chat/completions", **body) for _ in range(30)))
            statuses = [r.status_code for r in responses]
            assert statuses.count(200) >= 3  # a burst on an idle engine fills the queue before the first step
            refused = [r for r in responses if r.status_code != 200]
            assert refused
            assert {r.status_code for r in refused} == {429}
            assert all(int(r.headers["retry-after"]) >= 1 and r.json()["error"]["code"] for r in refused)
            await client.wait_idle()
            assert (await client.post("/v1/chat/completions", **body)).status_code == 200  # places came back

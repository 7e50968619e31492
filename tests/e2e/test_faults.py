"""kill -9 of each service while requests run: proper errors, no hang, back in use by itself, nothing else restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.client import Client, until, user
from tests.e2e.streams import ends, is_error_frame, is_whole, running_streams
from tests.support.stack import Stack

TOKENS = 400
ENDS_WITHIN = 15  # seconds: far more than it takes, far less than the request's deadline: a hang fails


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(engine_flags="--executor scripted --step-ms 25") as stack:
        yield stack


async def others_unchanged(stack: Stack, before: dict[str, int], killed: str) -> None:
    after = stack.pids()
    assert {name for name in before if before[name] != after[name]} == {killed}


@pytest.mark.parametrize("victim", ["engine", "detokenizer"])
async def test_fieldbug_27_killing_it_in_mid_stream_ends_each_stream_with_an_error_frame(
    stack: Stack, victim: str
) -> None:
    before = stack.pids()
    async with Client(stack) as client, running_streams(client, count=8, tokens=TOKENS) as streams:
        whole = asyncio.create_task(
            client.post("/v1/chat/completions", messages=user("whole"), max_tokens=TOKENS, ignore_eos=True)
        )
        await until(lambda: runs(client, 9), 20, lambda: "the ninth never ran")
        stack.kill(victim)
        for result in await ends(streams, ENDS_WITHIN):
            assert is_error_frame(result), result  # what was sent stays sent
        response = await whole  # it had no byte yet: sent again by the gateway, or a clean 503
        assert response.status_code in (200, 502, 503), response.text
        if response.status_code == 200:
            assert response.json()["usage"]["completion_tokens"] == TOKENS
        else:
            assert response.json()["error"]["message"]
        await until(client.answers, 30, lambda: f"{victim} not in use again")
        await others_unchanged(stack, before, victim)
        await client.wait_idle()


async def runs(client: Client, count: int) -> bool:
    return (await client.read_outs())["engine"]["scheduler_running"] == count


@pytest.mark.parametrize("victim", ["tokenizer", "detokenizer", "engine"])
async def test_a_request_that_had_no_token_yet_is_sent_again_and_succeeds(stack: Stack, victim: str) -> None:
    async with Client(stack) as client:
        before = stack.pids()
        stack.kill(victim)
        async with asyncio.timeout(60):
            answers = await asyncio.gather(
                client.whole(messages=user("one"), max_tokens=5, ignore_eos=True),
                client.stream(messages=user("two"), max_tokens=5, ignore_eos=True),
            )
        assert answers[0]["usage"]["completion_tokens"] == 5
        assert answers[1].done
        assert answers[1].usage is not None
        await others_unchanged(stack, before, victim)


async def test_killing_the_tokenizer_leaves_running_streams_alone(stack: Stack) -> None:
    async with Client(stack) as client, running_streams(client, count=4, tokens=160) as streams:
        stack.kill("tokenizer")
        for result in await asyncio.gather(*streams):
            assert is_whole(result, 160), result
        await until(client.answers, 30, lambda: "tokenizer not in use again")


async def test_killing_the_gateway_closes_connections_and_frees_the_engine(stack: Stack) -> None:
    before = stack.pids()
    async with Client(stack) as client, running_streams(client, count=8, tokens=TOKENS) as streams:
        stack.kill("gateway")
        results = await ends(streams, ENDS_WITHIN)
        assert all(isinstance(result, httpx.TransportError) for result in results), results
        await until(client.answers, 30, lambda: "gateway not in use again")
        await client.wait_idle()
        await others_unchanged(stack, before, "gateway")


async def test_fieldbug_28_ready_follows_the_engine(stack: Stack) -> None:
    async with Client(stack) as client:
        assert (await client.http.get("/ready")).status_code == 200
        stack.kill("engine")

        async def not_ready() -> bool:
            return (await client.http.get("/ready")).status_code == 503

        await until(not_ready, 10, lambda: "ready without an engine")
        assert (await client.http.get("/health")).status_code == 200  # the gateway itself lives
        await until(client.answers, 30, lambda: "engine not in use again")

        async def ready() -> bool:
            return (await client.http.get("/ready")).status_code == 200

        await until(ready, 10, lambda: "not ready though it serves")

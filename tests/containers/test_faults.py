"""Crashes, cut networks and stops under load: requests end properly, the rest goes on, the service comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.containers.compose import Compose, docker
from tests.e2e.client import Client, Streamed, until, user

pytestmark = pytest.mark.containers
STREAMS = 32
ENDS_WITHIN = 5  # seconds that an affected request may take to end
LONG = {"max_tokens": 2000, "ignore_eos": True, "temperature": 0}


@asynccontextmanager
async def running_streams(client: Client) -> AsyncIterator[list[asyncio.Task[Streamed]]]:
    """Streams that run and have shown text each; what is left of them is cancelled at the end."""
    started = [asyncio.Event() for _ in range(STREAMS)]
    tasks = [
        asyncio.create_task(
            client.stream(messages=user(f"Story {i}"), on_delta=lambda _, e=event: e.set(), **LONG)  # type: ignore[misc]
        )
        for i, event in enumerate(started)
    ]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(event.wait() for event in started))
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answers(client: Client) -> bool:
    try:
        response = await client.post("/v1/chat/completions", messages=user("hello"), max_tokens=3)
    except httpx.TransportError:
        return False
    return response.status_code == 200


async def ends(tasks: list[asyncio.Task[Streamed]]) -> list[Streamed | BaseException]:
    """How each stream ended. Fails when one of them hangs."""
    done, left = await asyncio.wait(tasks, timeout=ENDS_WITHIN)
    assert not left, f"{len(left)} of {len(tasks)} streams hang"
    return [task.exception() or task.result() for task in done]


async def all_end_with_an_error_frame(tasks: list[asyncio.Task[Streamed]]) -> None:
    """Each stream that runs, behind the text that it had."""
    begin = time.monotonic()
    for result in await ends(tasks):
        assert isinstance(result, Streamed), result
        assert result.text
        assert result.error is not None
        assert result.error["message"]
        assert not result.done
    print(f"\nnoticed after {time.monotonic() - begin:.1f} s")


@pytest.mark.parametrize("victim", ["engine", "detokenizer"])
async def test_a_crash_ends_its_streams_with_an_error_frame(road: Compose, victim: str) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        crashed = road.container(victim)
        crashed.kill()
        await all_end_with_an_error_frame(streams)
        await until(lambda: answers(client), 60, lambda: f"{victim} is not in use again")
        assert road.container(victim).started != crashed.started
        await client.wait_idle()


async def test_a_crash_of_the_tokenizer_leaves_streams_alone(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        road.container("tokenizer").kill()
        await until(lambda: answers(client), 60, lambda: "the tokenizer is not in use again")
        assert not [task for task in streams if task.done()]


async def test_a_crash_of_the_gateway_closes_connections_and_frees_the_engine(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        road.container("gateway").kill()
        assert all(isinstance(result, httpx.TransportError) for result in await ends(streams))
    async with Client(road) as client:  # by a new connection
        await until(lambda: answers(client), 60, lambda: "the gateway is not in use again")
        await client.wait_idle()


async def test_a_cut_network_is_noticed_by_keepalive(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        cut = road.container("engine")
        with cut.cut_off("engine"):
            await all_end_with_an_error_frame(streams)
        await until(lambda: answers(client), 60, lambda: "the engine is not in use again")
        assert road.container("engine").started == cut.started  # nobody restarted it
        await client.wait_idle()


async def test_a_stop_drains(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        stopping = asyncio.create_task(asyncio.to_thread(road.run, "stop", "gateway"))

        async def refused() -> bool:
            return (await client.post("/v1/chat/completions", messages=user("late"), max_tokens=1)).status_code == 503

        await until(refused, 10, lambda: "a gateway that stops takes new requests")
        late = await client.post("/v1/chat/completions", messages=user("late"), max_tokens=1)
        assert late.status_code == 503
        assert int(late.headers["retry-after"]) > 0
        assert not [task for task in streams if task.done()]  # they have the grace to finish
        await stopping
        results = await asyncio.gather(*streams, return_exceptions=True)
        # What ran longer than the grace got an error; nothing was cut without a word.
        assert all(isinstance(r, Streamed) and (r.done or r.error) for r in results), results


async def test_a_stop_of_everything_lets_running_requests_finish(road: Compose) -> None:
    async with Client(road) as client:
        body = {"messages": user("Write about the sea."), "max_tokens": 150, "ignore_eos": True}
        begun = asyncio.Event()
        streams = [asyncio.create_task(client.stream(on_delta=lambda _: begun.set(), **body)) for _ in range(4)]
        await begun.wait()
        await asyncio.to_thread(road.run, "stop")
        for stream in await asyncio.gather(*streams):
            assert stream.done
            assert stream.usage is not None
            assert stream.usage["completion_tokens"] == 150


async def test_docker_kill_counts_as_a_stop_and_start_brings_it_back(road: Compose) -> None:
    async with Client(road) as client:
        engine = road.container("engine")
        docker("kill", engine.id)
        docker("start", engine.id)
        await until(lambda: answers(client), 60, lambda: "the engine is not in use again")

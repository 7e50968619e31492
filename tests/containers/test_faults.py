"""Crashes, cut networks and stops under load: requests end properly, the rest goes on, the service comes back."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.containers.compose import Compose, docker
from tests.e2e.client import Client, Streamed, read_out, until, user
from tests.e2e.streams import (
    STREAMS,
    all_end_with_an_error_frame,
    ends,
    is_error_frame,
    is_whole,
    running_streams,
)

pytestmark = pytest.mark.containers


@pytest.mark.parametrize("victim", ["engine", "detokenizer"])
async def test_a_crash_ends_its_streams_with_an_error_frame(road: Compose, victim: str) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        crashed = road.container(victim)
        crashed.kill()
        await all_end_with_an_error_frame(streams)
        await until(client.answers, 60, lambda: f"{victim} is not in use again")
        assert road.container(victim).started != crashed.started
        await client.wait_idle()


async def test_a_crash_of_the_tokenizer_leaves_streams_alone_and_new_requests_wait_for_it(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        crashed = road.container("tokenizer")
        asked = [asyncio.create_task(client.post("/v1/completions", prompt="a " * 300, max_tokens=1)) for _ in range(8)]
        crashed.kill()
        asked += [asyncio.create_task(client.post("/v1/completions", prompt="a", max_tokens=1)) for _ in range(8)]
        assert [response.status_code for response in await asyncio.gather(*asked)] == [200] * 16
        assert road.container("tokenizer").started != crashed.started
        assert not [task for task in streams if task.done()]


async def test_a_crash_of_the_gateway_closes_connections_and_frees_the_engine(road: Compose) -> None:
    crashed = road.container("gateway")
    async with Client(road) as client, running_streams(client) as streams:
        crashed.kill()
        assert all(isinstance(result, httpx.TransportError) for result in await ends(streams))
    async with Client(road) as client:  # by a new connection
        await until(client.answers, 60, lambda: "the gateway is not in use again")
        assert road.container("gateway").started != crashed.started
        await client.wait_idle()


@pytest.mark.parametrize("victim", ["engine", "detokenizer"])
async def test_a_cut_network_is_noticed_by_keepalive(road: Compose, victim: str) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        cut = road.container(victim)
        with cut.cut_off(victim):
            await all_end_with_an_error_frame(streams)
        await until(client.answers, 60, lambda: f"the {victim} is not in use again")
        assert road.container(victim).started == cut.started  # nobody restarted it
        await client.wait_idle()


async def test_a_tokenizer_that_is_cut_off_leaves_streams_alone_and_is_used_again(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        cut = road.container("tokenizer")
        with cut.cut_off("tokenizer"):
            asked = asyncio.create_task(client.post("/v1/completions", prompt="a", max_tokens=1))
            await until(lambda: not_ready(client), 10, lambda: "ready without a tokenizer")
        assert (await asked).status_code == 200
        assert not [task for task in streams if task.done()]
        assert road.container("tokenizer").started == cut.started


async def not_ready(client: Client) -> bool:
    return (await client.http.get("/ready")).status_code == 503


async def test_a_gateway_that_is_cut_off_ends_its_streams_and_holds_nothing_behind_it(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        with road.container("gateway").cut_off("gateway"):
            # The published port may go with the network: then it is the connection that ends.
            assert all(isinstance(r, httpx.TransportError) or is_error_frame(r) for r in await ends(streams))
            await until(lambda: nothing_runs(road), 10, lambda: "requests of a gateway that is gone")
    async with Client(road) as client:
        await until(client.answers, 60, lambda: "the gateway is not in use again")
        await client.wait_idle()


async def nothing_runs(road: Compose) -> bool:
    held = [(await read_out(road.address(name))).requests for name in ("detokenizer", "engine")]
    return not any(count for requests in held for count in requests.values())


async def test_a_stop_drains(road: Compose) -> None:
    async with Client(road) as client, running_streams(client) as streams:
        stopping = asyncio.create_task(asyncio.to_thread(road.run, "stop", "gateway"))
        await until(lambda: refused(client), 10, lambda: "a gateway that stops takes new requests")
        assert not [task for task in streams if task.done()]  # they have the grace to finish
        await stopping
        results = await asyncio.gather(*streams, return_exceptions=True)
        # What ran longer than the grace got an error; nothing was cut without a word.
        assert all(isinstance(r, Streamed) and (r.done or r.error) for r in results), results


async def test_a_stop_of_everything_under_load_lets_running_requests_finish(road: Compose) -> None:
    async with Client(road) as client, running_streams(client, tokens=150) as streams:
        stopping = asyncio.create_task(asyncio.to_thread(road.run, "stop"))
        await until(lambda: refused(client), 10, lambda: "a road that stops takes new requests")
        results = await asyncio.gather(*streams, return_exceptions=True)
        assert [is_whole(result, 150) for result in results] == [True] * STREAMS, results
        await stopping


async def refused(client: Client) -> bool:
    """Whether new requests are refused, as they have to be by who stops: with 503 and when to come again."""
    response = await client.post("/v1/chat/completions", messages=user("late"), max_tokens=1)
    if response.status_code == 200:
        return False
    assert response.status_code == 503, response.text
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["message"]
    return True


async def test_docker_kill_counts_as_a_stop_and_start_brings_it_back(road: Compose) -> None:
    async with Client(road) as client:
        for service in ("tokenizer", "detokenizer", "engine"):
            container = road.container(service)
            docker("kill", container.id)
            assert not road.containers(service)  # and nobody starts it
            docker("start", container.id)
            await until(client.answers, 60, lambda one=service: f"the {one} is not in use again")  # type: ignore[misc]

"""More containers of a station: load spreads by itself, and one at a time can go and come."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable

import httpx
import pytest

from tests.containers.compose import METRICS_PORTS, Compose, Container, docker
from tests.e2e.client import Client, until, user

pytestmark = pytest.mark.containers
NOT_SERVING = '"event": "not serving"'
PICKED_UP_WITHIN = 30  # seconds until a new replica has served a request


async def served(container: Container) -> int:
    """Requests that a tokenizer or detokenizer has answered."""
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"http://{container.address}:{METRICS_PORTS[container.service]}/metrics")).text
    pattern = rf"^postroad_{container.service}_requests_total\{{.*\}} (\S+)$"
    return int(sum(float(count) for count in re.findall(pattern, page, flags=re.M)))


class Load:
    """Clients that ask without a pause and try again when a connection fails, as clients do."""

    def __init__(self, urls: list[str], clients: int = 4) -> None:
        self._urls = itertools.cycle(urls)
        self._clients = clients
        self.answered = 0
        self.lost: list[str] = []

    async def __aenter__(self) -> Load:
        self._http = httpx.AsyncClient(timeout=60)
        self._tasks = [asyncio.create_task(self._ask_on()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def _ask_on(self) -> None:
        while True:
            await self._ask()

    async def _ask(self) -> None:
        body = {"messages": user("hello"), "max_tokens": 4, "ignore_eos": True}
        for _ in range(20):
            try:
                response = await self._http.post(f"{next(self._urls)}/v1/chat/completions", json=body)
            except httpx.TransportError:
                await asyncio.sleep(0.1)  # a client's own back-off, not a wait for anything here
                continue
            if response.status_code == 503 and "retry-after" in response.headers:
                continue  # that gateway is about to stop: the next one
            if response.status_code == 200:
                self.answered += 1
            else:
                self.lost.append(response.text)
            return
        self.lost.append("no connection")


async def wait_for_more(load: Load, count: int = 8) -> None:
    goal = load.answered + count

    async def reached() -> bool:
        return load.answered >= goal

    await until(reached, 60, lambda: f"no more answers; lost: {load.lost[:3]}")


async def test_new_replicas_get_their_share_and_lost_ones_are_dropped(road: Compose) -> None:
    async with Load([road.url]) as load:
        await wait_for_more(load)
        await asyncio.to_thread(road.up, tokenizer=3, detokenizer=2)
        replicas = [*road.containers("tokenizer"), *road.containers("detokenizer")]
        assert len(replicas) == 5

        async def all_serve() -> bool:
            return min([await served(replica) for replica in replicas]) > 0

        await until(all_serve, PICKED_UP_WITHIN, lambda: "a new replica gets nothing")
        road.containers("tokenizer")[0].kill()
        await wait_for_more(load, 24)
        assert not load.lost


async def test_containers_go_and_come_one_at_a_time_and_no_request_is_lost(road: Compose) -> None:
    await asyncio.to_thread(road.up, tokenizer=2, detokenizer=2, gateway=2)
    async with Load(road.urls) as load:
        for service in ("tokenizer", "detokenizer", "gateway"):
            for container in road.containers(service):
                await wait_for_more(load)
                await asyncio.to_thread(docker, "stop", "--time=40", container.id)
                await wait_for_more(load)
                await asyncio.to_thread(docker, "start", container.id)
                await until(lambda one=container: healthy(one), 60, lambda: "not healthy again")  # type: ignore[misc]
        assert not load.lost


async def healthy(container: Container) -> bool:
    state = await asyncio.to_thread(docker, "inspect", "--format={{.State.Health.Status}}", container.id)
    return state.strip() == "healthy"


async def test_a_stream_outlives_the_age_of_its_connection(road: Compose) -> None:
    """Tokenizer and detokenizer ask clients to connect anew every 10 s; a call that runs keeps its connection."""
    lost_before = road.logs("gateway").count(NOT_SERVING)
    async with Client(road) as client:
        begin = asyncio.get_running_loop().time()
        lived: Callable[[], float] = lambda: asyncio.get_running_loop().time() - begin  # noqa: E731
        while lived() < 15:
            result = await client.stream(messages=user("Go on."), max_tokens=1500, ignore_eos=True)
            assert result.done, result.error
    assert road.logs("gateway").count(NOT_SERVING) == lost_before

"""More containers of a station: load spreads by itself, to those that came later, too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import httpx
import pytest

from tests.containers.compose import METRICS_PORTS, Compose, Container
from tests.containers.load import Load
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


async def test_new_replicas_get_their_share_and_lost_ones_are_dropped(road: Compose) -> None:
    async with Load([road.url]) as load:
        await load.wait_for_more()
        await asyncio.to_thread(road.up, tokenizer=3, detokenizer=2)
        replicas = [*road.containers("tokenizer"), *road.containers("detokenizer")]
        assert len(replicas) == 5

        async def all_serve() -> bool:
            return min([await served(replica) for replica in replicas]) > 0

        begin = asyncio.get_running_loop().time()
        await until(all_serve, PICKED_UP_WITHIN, lambda: "a new replica gets nothing")
        print(f"\nall healthy ones are used after {asyncio.get_running_loop().time() - begin:.1f} s")
        road.containers("tokenizer")[0].kill()
        await load.wait_for_more(24)
        assert not load.lost


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

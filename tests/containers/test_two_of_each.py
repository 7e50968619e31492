"""Two tokenizers, detokenizers and gateways: who loses one loses only what ran there, and one at a time can go and
come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.containers.compose import Compose, Container, docker
from tests.containers.load import Load
from tests.e2e.client import Client, Streamed, until
from tests.e2e.streams import ENDS_WITHIN, STREAMS, Task, is_error_frame, is_whole, running_streams

pytestmark = pytest.mark.containers
TOKENS = 200  # of a stream that nothing happens to: more than come before the affected ones have ended


@pytest.fixture
def two_of_each(road: Compose) -> Compose:
    road.up(tokenizer=2, detokenizer=2, gateway=2)
    return road


@dataclass(frozen=True, slots=True)
class OneGateway:
    """The road as clients of one gateway see it."""

    road: Compose
    url: str

    def address(self, service: str) -> str:
        return self.road.address(service)


@asynccontextmanager
async def streams_by_both_gateways(road: Compose) -> AsyncIterator[list[Task]]:
    """Those of even places by the first, the others by the second."""
    first, second = (OneGateway(road, url) for url in road.urls)
    async with Client(first) as one, Client(second) as other, running_streams(one, other, tokens=TOKENS) as streams:
        yield streams


async def ended_and_whole(streams: Sequence[Task]) -> tuple[list[Streamed | BaseException], int]:
    """How those ended that did not come to their own end, in time, and how many did."""
    ended, others = await asyncio.wait(streams, timeout=ENDS_WITHIN)
    broken = [outcome for task in ended if not is_whole(outcome := task.exception() or task.result(), TOKENS)]
    rest = await asyncio.gather(*others, return_exceptions=True)
    late = [outcome for outcome in rest if not is_whole(outcome, TOKENS)]
    assert not late, late
    return broken, len(streams) - len(broken)


async def test_a_crash_of_one_detokenizer_ends_its_streams_and_no_others(two_of_each: Compose) -> None:
    async with Load(two_of_each.urls) as load, streams_by_both_gateways(two_of_each) as streams:
        await load.wait_for_more()
        two_of_each.containers("detokenizer")[0].kill()
        broken, whole = await ended_and_whole(streams)
        assert 0 < len(broken) < STREAMS
        assert all(is_error_frame(outcome) for outcome in broken), broken
        assert whole == STREAMS - len(broken)
        await load.wait_for_more()
        two_of_each.wait_healthy(["detokenizer"])
        assert len(two_of_each.containers("detokenizer")) == 2
        lost = load.lost
    assert all("detokenizer" in text for text in lost), lost  # that had a token already


async def test_a_crash_of_one_tokenizer_is_not_seen(two_of_each: Compose) -> None:
    async with Load(two_of_each.urls) as load, streams_by_both_gateways(two_of_each) as streams:
        await load.wait_for_more()
        two_of_each.containers("tokenizer")[0].kill()
        await load.wait_for_more()
        assert await ended_and_whole(streams) == ([], STREAMS)
        assert not load.lost


async def test_a_crash_of_one_gateway_closes_its_connections_and_no_others(two_of_each: Compose) -> None:
    async with streams_by_both_gateways(two_of_each) as streams:
        first, _ = two_of_each.containers("gateway")
        first.kill()
        broken, _ = await ended_and_whole(streams[::2])
        assert len(broken) == STREAMS // 2
        assert all(isinstance(outcome, httpx.TransportError) for outcome in broken), broken
        assert await ended_and_whole(streams[1::2]) == ([], STREAMS // 2)
    two_of_each.wait_healthy(["gateway"])
    assert len(two_of_each.containers("gateway")) == 2


async def test_containers_go_and_come_one_at_a_time_and_no_request_is_lost(two_of_each: Compose) -> None:
    async with Load(two_of_each.urls) as load:
        for service in ("tokenizer", "detokenizer", "gateway"):
            for container in two_of_each.containers(service):
                await load.wait_for_more()
                await asyncio.to_thread(docker, "stop", "--time=40", container.id)
                await load.wait_for_more()
                await asyncio.to_thread(docker, "start", container.id)
                await until(lambda one=container: healthy(one), 60, lambda: "not healthy again")  # type: ignore[misc]
        assert not load.lost


async def healthy(container: Container) -> bool:
    state = await asyncio.to_thread(docker, "inspect", "--format={{.State.Health.Status}}", container.id)
    return state.strip() == "healthy"

"""Who may join, asked at a real engine over gRPC whose own part is never loaded."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from services.common.errors import InvalidArgument, NotReady, PostroadError
from services.engine.core import EngineCore
from services.engine.errors import StartupError
from services.engine.ranks.errors import RankRefused, RankTaken
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.leader_stream import LeaderStream
from services.engine.ranks.link import RankLink
from services.engine.ranks.wire import identity_message
from services.engine.served_model import ServedModel
from services.engine.settings import EngineSettings
from services.engine.station import EngineStation
from services.pb.postroad.v1 import ranks_pb2
from tests.engine.running_engine import MODEL
from tests.support.polling import WAIT_SECONDS

IDENTITY = RankIdentity(
    version="1.2.3",
    tensor_parallel_size=3,
    model_fingerprint="abc",
    dtype="float32",
    page_size=16,
    max_model_len=0,
    device="cpu",
    quantization="none",
    kv_cache_dtype="float32",
)


@asynccontextmanager
async def rank_0(size: int = 3, *, identified: bool = True) -> AsyncIterator[tuple[EngineStation, CollectorRegistry]]:
    ended = threading.Event()

    def load(publish: Callable[[ServedModel], None], link: RankLink) -> EngineCore:
        publish(MODEL)
        if identified:
            link.identified(IDENTITY)
        ended.wait(WAIT_SECONDS)
        raise StartupError("the test is over")

    settings = EngineSettings(port=0, metrics_port=0, drain_timeout=0, tensor_parallel_size=size)
    registry = CollectorRegistry()
    station = EngineStation(settings, load, registry, structlog.get_logger())
    await station.start()
    serving = asyncio.create_task(station.run_until_stopped())
    try:
        yield station, registry
    finally:
        station.request_stop()
        await serving
        ended.set()


@asynccontextmanager
async def joining(
    station: EngineStation, rank: int = 1, **differences: Any
) -> AsyncIterator[tuple[asyncio.Event, asyncio.Task[None]]]:
    """A rank's stream, and an event for that it was accepted."""
    stream, accepted = LeaderStream(f"127.0.0.1:{station.port}"), asyncio.Event()
    identity = identity_message(dataclasses.replace(IDENTITY, **differences))
    task = asyncio.create_task(
        stream.follow(ranks_pb2.JoinGroup(rank=rank, identity=identity), lambda _: accepted.set())
    )
    try:
        yield accepted, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.close()


async def refusal(station: EngineStation, **rank: Any) -> PostroadError:
    async with joining(station, **rank) as (_, task), asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(PostroadError) as raised:
            await task
    return raised.value


@pytest.mark.parametrize(
    ("rank", "named"),
    [
        ({"tensor_parallel_size": 2}, "tensor-parallel-size is 2 there and 3 at rank 0"),
        ({"version": "1.2.4"}, "version is '1.2.4' there and '1.2.3' at rank 0"),
        ({"model_fingerprint": "xyz"}, "model-fingerprint is 'xyz' there and 'abc' at rank 0"),
        ({"max_model_len": 64}, "max-model-len is 64 there and 0 at rank 0"),
        ({"device": "cuda"}, "device is 'cuda' there and 'cpu' at rank 0"),
        ({"kv_cache_dtype": "fp8"}, "kv-cache-dtype is 'fp8' there and 'float32' at rank 0"),
        ({"rank": 3}, "rank 3 is not 1 to 2"),
        ({"rank": 0}, "rank 0 is not 1 to 2"),
    ],
)
async def test_a_rank_that_does_not_fit_is_told_why(rank: dict[str, Any], named: str) -> None:
    async with rank_0() as (station, _):
        error = await refusal(station, **rank)
    assert isinstance(error, RankRefused)
    assert named in error.message


async def test_an_engine_of_one_rank_refuses_others() -> None:
    async with rank_0(size=1) as (station, _):
        error = await refusal(station)
    assert isinstance(error, RankRefused)
    assert "tensor-parallel-size is 3 there and 1 at rank 0" in error.message


async def test_a_rank_may_come_before_rank_0_has_its_files() -> None:
    async with rank_0(identified=False) as (station, _):
        assert isinstance(await refusal(station), NotReady)


async def test_a_rank_is_there_once_until_it_goes() -> None:
    async with rank_0() as (station, registry), asyncio.timeout(WAIT_SECONDS):
        connected = lambda: registry.get_sample_value("postroad_ranks_connected")  # noqa: E731
        async with joining(station) as (accepted, _):
            await accepted.wait()
            assert connected() == 2
            assert isinstance(await refusal(station), RankTaken)
            async with joining(station, rank=2) as (second, _):
                await second.wait()
                assert connected() == 3
        while connected() != 1:  # noqa: ASYNC110 noticed by rank 0
            await asyncio.sleep(0.002)
        async with joining(station) as (again, _):
            await again.wait()


async def test_the_first_message_must_be_join() -> None:
    async with rank_0() as (station, _):
        stream = LeaderStream(f"127.0.0.1:{station.port}")
        with pytest.raises(InvalidArgument, match="first message"):
            await stream.follow(None, lambda _: None)  # type: ignore[arg-type]
        await stream.close()

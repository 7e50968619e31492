"""SIGTERM: not serving, new requests refused, running ones finished within the drain's time, streams closed."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from services.common.errors import Draining, from_rpc
from services.pb.postroad.v1 import common_pb2
from tests.engine.framed_peer import framed_peer
from tests.engine.running_engine import GatedExecutor, request, running_engine, scripted
from tests.support.polling import WAIT_SECONDS


async def stopped(engine):
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.shield(engine.serving)


async def test_running_requests_finish_and_new_ones_are_refused():
    gate = GatedExecutor(scripted(10, 11, 12))
    async with running_engine(gate, drain_timeout=WAIT_SECONDS) as engine, framed_peer(engine) as peer:
        streamed = asyncio.create_task(engine.generate(request(max_tokens=3)))
        framed = peer.generate(1, request(max_tokens=3))
        await engine.until(lambda r: r.requests["engine_live"] == 2)
        engine.station.request_stop()
        await engine.until_health("NOT_SERVING")
        with pytest.raises(Draining):
            await engine.generate(request())
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await peer.generate(2, request())
        assert isinstance(from_rpc(raised.value), Draining)
        gate.allow(20)
        assert (await streamed).token_ids == [10, 11, 12]
        assert (await framed).end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert peer.by_handle[1].token_ids == [10, 11, 12]
        await stopped(engine)
        assert await peer.call.code() == grpc.StatusCode.OK  # the frame stream was ended, not cut
        assert not engine.station.failed


async def test_what_outlasts_the_drain_is_ended_with_an_error():
    gate = GatedExecutor(scripted(10, 11, 12))
    async with running_engine(gate, drain_timeout=0.05) as engine, framed_peer(engine) as peer:
        streamed = asyncio.create_task(engine.generate(request(max_tokens=99)))
        framed = peer.generate(1, request(max_tokens=99))
        await engine.until(lambda r: r.requests["engine_live"] == 2)
        gate.allow(2)
        await peer.tokens(1, 1)
        engine.station.request_stop()
        with pytest.raises(Draining):
            await streamed
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await framed
        assert isinstance(from_rpc(raised.value), Draining)
        end = await peer.end(1)
        assert end.finish_reason == common_pb2.FINISH_REASON_ERROR
        assert end.error.reason == "DRAINING"
        gate.allow(99)
        await stopped(engine)


async def test_an_idle_engine_stops_with_an_open_session():
    async with running_engine() as engine, framed_peer(engine) as peer:
        engine.station.request_stop()
        await stopped(engine)
        assert await peer.call.code() == grpc.StatusCode.OK

"""`OpenFrames` and `GenerateFramed`: the tokens of all requests of a peer on one stream."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from services.common.errors import HandleInUse, InvalidArgument, QueueFull, SessionUnknown, Unavailable, from_rpc
from services.engine.scheduler.config import SchedulerConfig
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.engine.framed_peer import framed_peer
from tests.engine.running_engine import EOS, GatedExecutor, request, running_engine, scripted


async def error_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return from_rpc(raised.value)


async def test_one_request():
    async with running_engine(scripted(10, 11, EOS)) as engine, framed_peer(engine) as peer:
        response = await peer.generate(7, request([1, 2]))
        end = await peer.end(7)
        got = peer.by_handle[7]
        assert got.token_ids == [10, 11, EOS]
        assert got.start.prefill_us == end.timings.prefill_us
        assert (end.finish_reason, end.stop_token_id) == (common_pb2.FINISH_REASON_STOP, EOS)
        assert end.usage == common_pb2.Usage(prompt_tokens=2, completion_tokens=3)
        assert response.end == end
        await engine.until_idle()


async def test_many_requests_share_frames_and_keep_their_own_order():
    async with running_engine(scripted(*range(10, 60)), config=SchedulerConfig(max_num_seqs=32)) as engine:
        async with framed_peer(engine) as peer:
            await asyncio.gather(*(peer.generate(i, request([i + 1], max_tokens=1 + i)) for i in range(32)))
            for handle in range(32):
                await peer.end(handle)
                assert peer.by_handle[handle].token_ids == list(range(10, 11 + handle))
            assert peer.steps == sorted(peer.steps)
            assert len(peer.steps) < 32 * 32 / 4  # far fewer frames than tokens
        await engine.until_idle()


async def test_two_sessions_do_not_see_each_other():
    async with (
        running_engine(scripted(10, 11, 12)) as engine,
        framed_peer(engine) as one,
        framed_peer(engine) as two,
    ):
        assert one.session_id != two.session_id
        await asyncio.gather(one.generate(1, request(max_tokens=2)), two.generate(1, request(max_tokens=3)))
        await one.end(1)
        await two.end(1)
        assert one.by_handle[1].token_ids == [10, 11]
        assert two.by_handle[1].token_ids == [10, 11, 12]


async def test_a_handle_may_come_again_after_its_end():
    async with running_engine(scripted(10)) as engine, framed_peer(engine) as peer:
        for _ in range(20):
            await peer.generate(5, request(max_tokens=2))
            await peer.end(5)
            assert peer.by_handle.pop(5).token_ids == [10, 10]


async def test_fieldbug_24_a_handle_in_use_is_refused_and_its_request_goes_on():
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate) as engine, framed_peer(engine) as peer:
        call = peer.generate(5, request(max_tokens=2))
        await gate.step_entered()
        assert isinstance(await error_of(peer.generate(5, request())), HandleInUse)
        gate.allow(10)
        await call
        await peer.end(5)
        assert peer.by_handle[5].token_ids == [10, 11]
        await engine.until_idle()


async def test_an_unknown_session():
    async with running_engine() as engine:
        call = engine.stub.GenerateFramed(engine_pb2.GenerateFramedRequest(session_id=3, handle=1, request=request()))
        assert isinstance(await error_of(call), SessionUnknown)
        await engine.until_idle()


async def test_a_refused_request_leaves_no_trace_in_frames_and_frees_its_handle():
    gate = GatedExecutor(scripted(10))
    async with running_engine(gate, max_waiting=1) as engine, framed_peer(engine) as peer:
        assert isinstance(await error_of(peer.generate(1, request([]))), InvalidArgument)
        first = peer.generate(2, request(max_tokens=1))
        await gate.step_entered()
        assert isinstance(await error_of(peer.generate(1, request())), QueueFull)
        gate.allow(10)
        await first
        await peer.generate(1, request(max_tokens=1))
        assert (await peer.end(1)).finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert peer.by_handle.keys() == {1, 2}


async def test_a_cancelled_call_gets_its_terminal_event_in_a_frame():
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate) as engine, framed_peer(engine) as peer:
        cancelled, other = (peer.generate(handle, request(max_tokens=8)) for handle in (1, 2))
        gate.allow(3)
        await peer.tokens(1, 2)
        cancelled.cancel()
        await engine.until_handlers_gone(left=1)
        gate.allow(20)
        end = await peer.end(1)
        assert end.finish_reason == common_pb2.FINISH_REASON_CANCELLED
        assert end.usage.completion_tokens == len(peer.by_handle[1].token_ids) < 8
        await other
        assert len(peer.by_handle[2].token_ids) == 8
        await engine.until_idle()


async def test_fieldbug_20_a_session_that_ends_takes_all_its_requests_along():
    gate = GatedExecutor(scripted(10, 11))
    async with (
        running_engine(gate, config=SchedulerConfig(max_num_seqs=2)) as engine,
        framed_peer(engine) as stays,
        framed_peer(engine) as peer,
    ):
        calls = [peer.generate(handle, request(max_tokens=50)) for handle in range(4)]
        survivor = stays.generate(1, request(max_tokens=3))
        await engine.until(lambda r: r.requests["engine_live"] == 5)
        gate.allow(2)
        await peer.tokens(0, 1)
        peer.call.cancel()
        for call in calls:
            assert isinstance(await error_of(call), Unavailable)
        gate.allow(50)
        await survivor
        await stays.end(1)
        await engine.until_idle()
        framed = engine_pb2.GenerateFramedRequest(session_id=peer.session_id, handle=9, request=request())
        assert isinstance(await error_of(engine.stub.GenerateFramed(framed)), SessionUnknown)


async def test_fieldbug_20_a_lost_connection_takes_its_session_along():
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate) as engine:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{engine.station.port}") as channel:
            stub = type(engine.stub)(channel)
            frames = stub.OpenFrames(engine_pb2.OpenFramesRequest())
            session_id = (await frames.read()).session_id
            framed = engine_pb2.GenerateFramedRequest(session_id=session_id, handle=1, request=request(max_tokens=99))
            call = stub.GenerateFramed(framed)
            await gate.step_entered()
        assert call.done()
        await engine.until_handlers_gone()
        gate.allow(5)
        await engine.until_idle()

"""Requests whose client is gone, in every phase of their life and by every way of going."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import grpc
import pytest

from services.common.errors import DeadlineExceeded
from services.engine.executor.scripted import ScriptedExecutor
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.sequence import FinishReason
from services.pb.postroad.v1 import engine_pb2
from tests.engine.framed_peer import FramedPeer, framed_peer
from tests.engine.running_engine import INFO, GatedExecutor, request, running_engine, script, scripted


async def read_framed(peer: FramedPeer, handle: int, message: engine_pb2.GenerateRequest) -> None:
    response = await peer.generate(handle, message)
    assert await peer.end(handle) == response.end


SMALL_STEPS = SchedulerConfig(max_num_seqs=1, max_batch_tokens=8)


@pytest.mark.parametrize(("phase", "steps_before"), [("prefill", 1), ("after prefill", 3), ("decode", 5)])
async def test_fieldbug_20_a_cancelled_request_is_freed_before_the_next_step(phase, steps_before):
    """The prompt takes three steps. The step in progress is the last one that computes it."""
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate, config=SMALL_STEPS) as engine:
        call = engine.stub.Generate(request(range(24), max_tokens=50))
        for _ in range(steps_before):
            await gate.step_entered()
            gate.allow()
        await gate.step_entered()
        call.cancel()
        await engine.until_handlers_gone()
        gate.allow()
        read_out = await engine.until_idle()
        assert read_out.counters["steps"] == steps_before + 1
        assert engine.request_logs()[-1]["outcome"] == FinishReason.CANCELLED.name.lower()


async def test_fieldbug_20_a_queued_request_is_freed():
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate, config=SMALL_STEPS) as engine:
        running = asyncio.create_task(engine.generate(request(max_tokens=4)))
        await gate.step_entered()
        queued = engine.stub.Generate(request(max_tokens=4))
        await engine.until(lambda r: r.requests["engine_live"] == 2)
        queued.cancel()
        await engine.until_handlers_gone(left=1)
        gate.allow(4)
        assert (await running).token_ids == [10, 11, 10, 11]
        read_out = await engine.until_idle()
        assert read_out.counters["steps"] == 4
        assert "cancelled" in [entry["outcome"] for entry in engine.request_logs()]


async def test_fieldbug_22_cancelled_in_the_mailbox_before_the_engine_saw_it():
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate) as engine:
        running = asyncio.create_task(engine.generate(request(max_tokens=2)))
        await gate.step_entered()
        calls = [engine.stub.Generate(request()) for _ in range(10)]
        await engine.until(lambda r: r.requests["live"] == 11)
        for call in calls:
            call.cancel()
        await engine.until_handlers_gone(left=1)
        gate.allow(2)
        await running
        assert (await engine.until_idle()).counters["computed_tokens"] == 4


async def test_fieldbug_22_a_client_that_stopped_reading_and_then_cancels():
    async with running_engine(scripted(10, 11, 12)) as engine:
        call = engine.stub.Generate(request(max_tokens=100))
        await call.read()
        call.cancel()
        await engine.until_idle()


@pytest.mark.parametrize("framed", [False, True])
async def test_a_deadline_ends_the_request_in_the_engine(framed):
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate) as engine, framed_peer(engine) as peer:
        if framed:
            call = peer.generate(1, request(max_tokens=100), timeout=0.3)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        else:
            with pytest.raises(DeadlineExceeded):
                await engine.generate(request(max_tokens=100), timeout=0.3)
        await engine.until_handlers_gone()
        gate.allow(3)
        await engine.until_idle()
        assert engine.request_logs()[-1]["outcome"] == "cancelled"


async def test_fieldbug_23_a_cancel_that_crosses_the_end_is_harmless():
    async with running_engine(scripted(10)) as engine:
        for _ in range(50):
            call = engine.stub.Generate(request(max_tokens=1))
            await call.read()  # start, token and end in one
            call.cancel()
        await engine.until_idle()
        assert (await engine.generate(request(max_tokens=1))).token_ids == [10]


async def test_fieldbug_21_cancelling_one_of_a_batch_leaves_the_others_their_pages():
    gate = GatedExecutor(scripted(*range(10, 30)))
    async with running_engine(gate) as engine:
        prompt = range(1, 21)  # shared pages
        calls = [asyncio.create_task(engine.generate(request(prompt, max_tokens=8))) for _ in range(4)]
        await engine.until(lambda r: r.requests["engine_live"] == 4)
        gate.allow(3)
        await engine.until(lambda r: r.counters["steps"] == 4)  # the fourth waits at the gate
        calls[0].cancel()
        await engine.until_handlers_gone(left=3)
        gate.allow(20)
        for call in calls[1:]:
            assert (await call).token_ids == list(range(10, 18))
        await engine.until_idle()


async def test_fieldbug_25_a_storm_of_500_calls_cancelled_at_random_leaves_nothing_behind():
    """Of both forms, with a pool that is too small for all, so that some are preempted."""
    rng = random.Random(5)
    info = dataclasses.replace(INFO, num_pages=40)
    executor = ScriptedExecutor(info, script(*range(10, 90)), step_ms=2)
    config = SchedulerConfig(max_num_seqs=16, max_batch_tokens=64)
    async with running_engine(executor, config=config) as engine:
        before = await engine.generate(request(range(30), max_tokens=20))
        outcomes: list[str] = []
        async with framed_peer(engine) as peer:

            async def one(number: int) -> None:
                message = request(range(rng.randrange(1, 60)), max_tokens=rng.randrange(1, 60))
                if number % 2:
                    work = asyncio.ensure_future(read_framed(peer, number, message))
                else:
                    work = asyncio.ensure_future(engine.generate(message))
                await asyncio.sleep(rng.random())  # a moment of its own for each
                if number % 3:
                    work.cancel()
                await asyncio.wait([work])
                outcomes.append("cancelled" if work.cancelled() else repr(work.exception()))

            await asyncio.gather(*(one(number) for number in range(500)))
            read_out = await engine.until_idle()
        after = await engine.generate(request(range(30), max_tokens=20))
        assert after.token_ids == before.token_ids
        assert set(outcomes) == {"cancelled", "None"}
        assert min(outcomes.count("cancelled"), outcomes.count("None")) > 50
        assert read_out.counters["preemptions"] > 0
        assert not [entry for entry in engine.logs if entry["log_level"] != "info"]
        assert {"cancelled", "length"} == {entry["outcome"] for entry in engine.request_logs()}

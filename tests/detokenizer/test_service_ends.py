"""Requests that do not reach their text's end: cancelled, too late, or left by their engine. Nothing of them stays."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from services.common.errors import DeadlineExceeded, EngineLost, Internal, PostroadError
from services.common.request_context import ENGINE_KEY
from services.pb.postroad.v1 import detokenizer_pb2
from tests.detokenizer.client import Answer, generate, request, rest_of
from tests.detokenizer.fake_engine import LENGTH_END, fake_engine
from tests.engine.running_engine import GatedExecutor
from tests.support.engines import address, saying, scripted_engine
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.processes import Program
from tests.support.stations import running_detokenizer

TRANSPORTS = ["frames", "calls"]
GRPC_WORDS = re.compile("socket|stream removed|recvmsg|connection refused", re.IGNORECASE)
ENDLESS = {"max_tokens": 3000, "ignore_eos": True}


@contextmanager
def engine_process(port: int) -> Iterator[Program]:
    """A scripted engine in a process of its own, ready."""
    argv = [sys.executable, "-m", "services.engine", "--executor", "scripted", "--step-ms", "5"]
    with Program([*argv, "--port", str(port), "--metrics-port", "0"]) as program:
        program.wait_for_line(lambda line: '"event": "ready"' in line, "the engine")
        yield program


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fieldbug_20_cancelling_frees_the_sequence(transport: Any) -> None:
    executor = GatedExecutor(saying(" a b c"))
    async with (
        scripted_engine(executor) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        waiting_for_first = station.stub.Generate(request(params=ENDLESS))
        await executor.step_entered()
        waiting_for_first.cancel()
        await station.until_idle()
        executor.allow(2)
        await engine.until_idle()

        streaming = station.stub.Generate(request(params=ENDLESS))
        executor.allow(2)
        assert (await streaming.read()).text.startswith(" a")
        streaming.cancel()
        await station.until_idle()
        executor.allow(3)
        await engine.until_idle()
        assert [entry["outcome"] for entry in station.request_logs()] == ["cancelled"] * 2
        assert [entry["outcome"] for entry in engine.request_logs()] == ["cancelled"] * 2


async def test_a_call_that_is_opened_ahead_of_its_request() -> None:
    async with scripted_engine(saying(" a")) as engine, running_detokenizer(address(engine)) as station:
        open_call = station.channel.stream_stream("/postroad.v1.Detokenizer/Generate")
        taken_back, used, empty = open_call(), open_call(), open_call()
        await station.until(lambda held: held["open_runs"] == 3)
        assert (await station.read_out())["live_requests"] == 0

        taken_back.cancel()
        await empty.done_writing()
        assert (await empty.code(), await empty.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the call has no request",
        )
        await used.write(request(params={"max_tokens": 2}).SerializeToString())
        await used.done_writing()
        deltas = [detokenizer_pb2.TextDelta.FromString(data) async for data in used]
        assert "".join(delta.text for delta in deltas) == " a a"
        await station.until_idle()
        await engine.until_idle()
        assert [entry["outcome"] for entry in engine.request_logs()] == ["length"]
        assert [entry["outcome"] for entry in station.request_logs()] == ["length"]


async def test_fieldbug_22_cancelling_reaches_a_handler_that_the_caller_does_not_read() -> None:
    async with scripted_engine(saying(" a")) as engine, running_detokenizer(address(engine), pace_ms=0) as station:
        unread = station.stub.Generate(request(params=ENDLESS))
        await engine.until(lambda read_out: read_out.requests["engine_live"] == 1)
        unread.cancel()
        await station.until_idle()
        await engine.until_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_deadline_ends_the_engines_work(transport: Any) -> None:
    async with (
        scripted_engine(saying(" a", step_ms=20)) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        with pytest.raises(DeadlineExceeded):
            await generate(station.stub, request(params=ENDLESS), timeout=0.3)
        await station.until_idle()
        await engine.until_idle()
        assert [entry["outcome"] for entry in station.request_logs()] == ["deadline_exceeded"]


async def test_the_callers_deadline_is_the_engines() -> None:
    async with (
        fake_engine() as (engine, there),
        scripted_engine(saying("x")) as real,
        running_detokenizer(address(real)) as station,
    ):
        metadata = ((ENGINE_KEY, there),)
        call = asyncio.create_task(generate(station.stub, request(), timeout=1.5, metadata=metadata))
        await engine.next_call()
        [context] = engine.contexts
        remaining = context.time_remaining()
        assert remaining is not None
        assert 0 < remaining < 2.0  # gRPC rounds up
        with pytest.raises(DeadlineExceeded):
            await call
        await until(lambda: not engine.calls)
        await station.until_idle()


async def test_fieldbug_04_a_token_that_cannot_be_worked_on_ends_its_own_request_alone() -> None:
    async with (
        fake_engine() as (engine, there),
        scripted_engine(saying("x")) as real,
        running_detokenizer(address(real)) as station,
    ):
        metadata = ((ENGINE_KEY, there),)
        scored = request()
        scored.request.logprobs = 0
        odd = asyncio.create_task(generate(station.stub, scored, metadata=metadata))
        [(session, odd_handle)] = await engine.next_call()
        other = asyncio.create_task(generate(station.stub, request(), metadata=metadata))
        [handle] = [handle for _, handle in await engine.next_call(2) if handle != odd_handle]
        engine.send(session, (odd_handle, 30), (handle, 30), starts=(odd_handle, handle))  # without log-probabilities
        with pytest.raises(Internal):
            await odd
        engine.send(session, (handle, 30), ends={handle: LENGTH_END})
        engine.answer((session, handle))
        assert (await other).num_tokens == 2
        await station.until_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_engine_that_is_killed_ends_its_requests_and_is_found_again(transport: Any) -> None:
    [port] = free_ports(1)
    message = request(params=ENDLESS)
    with engine_process(port) as engine:
        async with running_detokenizer(f"127.0.0.1:{port}", engine_transport=transport) as station:
            calls = [station.stub.Generate(message) for _ in range(8)]
            for call in calls:
                assert (await call.read()).num_tokens > 0
            engine.send(signal.SIGKILL)
            for call in calls:
                with pytest.raises(EngineLost) as lost:
                    await asyncio.wait_for(rest_of(call), 5)
                assert GRPC_WORDS.search(lost.value.message) is None, "gRPC's own texts belong in the log"
            await station.until_idle()
            assert any(GRPC_WORDS.search(str(entry.get("cause", ""))) for entry in station.logs)
            assert {entry["outcome"] for entry in station.request_logs()} == {"engine_lost"}
            with pytest.raises(EngineLost) as lost:
                await generate(station.stub, message)
            assert lost.value.message == "the engine was lost: the connection failed"
            with engine_process(port):
                assert (await until_served(station.stub)).num_tokens == 5
            await station.until_idle()


async def until_served(stub: Any) -> Answer:
    """The first answer that is not ENGINE_LOST: the channel looks for a lost engine every second at most."""
    answers: list[Answer] = []

    async def is_served() -> bool:
        try:
            answers.append(await generate(stub, request(params={"max_tokens": 5})))
        except EngineLost:
            return False
        return True

    await until(is_served)
    return answers[0]


async def test_an_engine_that_stops_gracefully_says_so() -> None:
    async with scripted_engine(saying(" a", step_ms=5)) as other, running_detokenizer(address(other)) as station:
        async with scripted_engine(saying(" a", step_ms=5)) as engine:
            metadata = ((ENGINE_KEY, address(engine)),)
            call = station.stub.Generate(request(params=ENDLESS), metadata=metadata)
            assert (await call.read()).num_tokens > 0
            running = asyncio.create_task(rest_of(call))
        with pytest.raises(PostroadError) as caught:
            await running
        assert caught.value.status == grpc.StatusCode.UNAVAILABLE
        await station.until_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fieldbug_25_40_a_storm_of_cancelled_streams_leaves_nothing(transport: Any) -> None:
    dice = random.Random(25)
    async with (
        scripted_engine(saying(" one two three", step_ms=1)) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        alone = (await generate(station.stub, request([9], params={"max_tokens": 40}))).text
        outcomes = await asyncio.gather(*(one_of_the_storm(station.stub, n, dice.random()) for n in range(128)))
        assert {"finished", "cancelled", "stopped"} == set(outcomes)
        await station.until_idle()
        await engine.until_idle()
        assert (await generate(station.stub, request([9], params={"max_tokens": 40}))).text == alone


async def one_of_the_storm(stub: Any, number: int, chance: float) -> str:
    if chance < 0.3:
        answer = await generate(stub, request([number], params={"max_tokens": 40}))
        assert answer.text == (" one two three" * 14)[: len(answer.text)]
        assert answer.num_tokens == 40
        return "finished"
    if chance < 0.5:
        answer = await generate(stub, request([number], stop=["three one two"], params=ENDLESS))
        assert answer.text == " one two "
        return "stopped"
    call = stub.Generate(request([number], params=ENDLESS))
    for _ in range(int(chance * 10) - 5):
        await call.read()
    call.cancel()
    return "cancelled"


async def test_draining_refuses_new_requests_and_finishes_running_ones() -> None:
    executor = GatedExecutor(saying(" a b"))
    async with (
        scripted_engine(executor) as engine,
        running_detokenizer(address(engine), drain_timeout=20) as station,
    ):
        executor.allow(2)
        call = station.stub.Generate(request(params={"max_tokens": 4}))
        first = await call.read()
        station.station.request_stop()
        await until(lambda: any(entry["event"] == "draining" for entry in station.logs))
        with pytest.raises(PostroadError) as caught:
            await generate(station.stub, request())
        assert caught.value.status == grpc.StatusCode.UNAVAILABLE
        executor.allow(10)
        assert first.text + (await rest_of(call)).text == " a b a b"

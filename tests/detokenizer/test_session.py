"""Requests on frame sessions: what reaches a request's sink, in every order of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from services.common.errors import ContextLengthExceeded, EngineLost, InvalidArgument, PostroadError, QueueFull
from services.common.request_context import RequestContext
from services.detokenizer import engine_links
from services.detokenizer.engine_calls import CallTransport
from services.detokenizer.engine_frames import FrameTransport
from services.detokenizer.engine_links import EngineLinks
from services.detokenizer.token_sink import EngineTransport
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.common.serving import served
from tests.detokenizer.fake_engine import LENGTH_END, FakeEngine, fake_engine
from tests.engine.running_engine import GatedExecutor, running_engine, scripted
from tests.engine.running_engine import request as real_request
from tests.support.polling import until
from tests.support.ports import free_ports

CALLER = RequestContext("test")
REQUEST = engine_pb2.GenerateRequest(prompt_ids=[1])


@dataclass
class Sink:
    """Keeps what comes."""

    token_ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    prompt_scores: list[float] = field(default_factory=list)
    starts: int = 0
    end: engine_pb2.StreamEnd | None = None
    error: PostroadError | None = None

    def on_start(self, start: engine_pb2.StreamStart) -> None:
        assert not self.token_ids
        self.starts += 1

    def on_prompt_scores(self, scores: common_pb2.TokenLogprobs) -> None:
        assert not self.token_ids
        self.prompt_scores.extend(scores.logprobs)

    def on_tokens(self, token_ids: Sequence[int], scores: common_pb2.TokenLogprobs | None = None) -> None:
        self.token_ids.extend(token_ids)
        self.scores.extend(scores.logprobs if scores is not None else [])

    def on_end(
        self,
        token_ids: Sequence[int],
        end: engine_pb2.StreamEnd,
        scores: common_pb2.TokenLogprobs | None = None,
    ) -> None:
        assert self.end is None
        self.on_tokens(token_ids, scores)
        self.end = end

    def on_error(self, error: PostroadError) -> None:
        self.error = self.error or error


@pytest.fixture
async def fake() -> AsyncIterator[tuple[FakeEngine, str]]:
    async with fake_engine() as running:
        yield running


@pytest.fixture
async def frames() -> AsyncIterator[FrameTransport]:
    transport = FrameTransport("test", structlog.get_logger())
    yield transport
    await transport.close()


def start(transport: EngineTransport, address: str, sink: Sink, request: Any = REQUEST) -> asyncio.Task[None]:
    return asyncio.create_task(run(transport, address, request, sink))


async def run(transport: EngineTransport, address: str, request: Any, sink: Sink) -> None:
    with closing(transport.open(address, CALLER)) as opened:
        await opened.run(request, sink)


def is_idle(transport: EngineTransport) -> bool:
    return not any(transport.read_out().values())


async def test_requests_share_one_session(fake: tuple[FakeEngine, str], frames: FrameTransport) -> None:
    engine, address = fake
    sinks = [Sink(), Sink()]
    runs = [start(frames, address, sink) for sink in sinks]
    first, second = await engine.next_call(2)
    assert first[0] == second[0] == 1
    engine.send(1, (first[1], 10), (second[1], 20), (first[1], 11), starts=(first[1], second[1]))
    engine.send(1, (first[1], 12), (second[1], 21), ends={first[1]: LENGTH_END, second[1]: LENGTH_END})
    engine.answer(first)
    engine.answer(second)
    await asyncio.gather(*runs)
    assert {tuple(sink.token_ids) for sink in sinks} == {(10, 11, 12), (20, 21)}
    assert all(sink.starts == 1 and sink.end == LENGTH_END for sink in sinks)
    assert is_idle(frames)


async def test_a_call_that_returns_before_its_last_frame(fake: tuple[FakeEngine, str], frames: FrameTransport) -> None:
    engine, address = fake
    sink = Sink()
    run = start(frames, address, sink)
    [call] = await engine.next_call()
    engine.answer(call)
    await until(lambda: not engine.calls)
    assert not run.done()
    engine.send(1, (call[1], 10), ends={call[1]: LENGTH_END})
    await run
    assert (sink.token_ids, sink.end) == ([10], LENGTH_END)


async def test_frames_that_end_after_the_calls_answer_end_the_request(
    fake: tuple[FakeEngine, str], frames: FrameTransport
) -> None:
    engine, address = fake
    sink = Sink()
    run = start(frames, address, sink)
    [call] = await engine.next_call()
    engine.answer(call)  # its last tokens never come
    await until(lambda: not engine.calls)
    engine.end_frames(1)
    await asyncio.wait_for(run, 20)
    assert isinstance(sink.error, EngineLost)
    assert is_idle(frames)


async def test_fieldbug_23_frames_of_cancelled_requests_are_ignored(
    fake: tuple[FakeEngine, str], frames: FrameTransport
) -> None:
    engine, address = fake
    cancelled, living = Sink(), Sink()
    run = start(frames, address, cancelled)
    [call] = await engine.next_call()
    run.cancel()
    await until(lambda: not engine.calls)
    assert is_idle(frames)
    other = start(frames, address, living)
    [second] = await engine.next_call()
    engine.send(1, (call[1], 10), (second[1], 20), (999_999, 30), starts=(call[1], 999_999))
    engine.send(1, (second[1], 21), ends={call[1]: LENGTH_END, second[1]: LENGTH_END})
    engine.answer(second)
    await other
    assert living.token_ids == [20, 21]
    assert cancelled == Sink()


async def test_an_unknown_session_is_replaced_and_the_request_tried_again(
    fake: tuple[FakeEngine, str], frames: FrameTransport
) -> None:
    engine, address = fake
    old, new = Sink(), Sink()
    old_run = start(frames, address, old)
    [old_call] = await engine.next_call()
    engine.forgotten.add(1)
    new_run = start(frames, address, new)
    await until(lambda: (2, 1) in engine.calls)
    assert isinstance(old.error, EngineLost)  # what rode the forgotten session cannot come any more
    engine.send(2, (1, 10), ends={1: LENGTH_END})
    engine.answer((2, 1))
    await new_run
    assert (new.token_ids, new.error) == ([10], None)
    engine.answer(old_call)
    await old_run
    assert engine.num_sessions == 2
    assert is_idle(frames)


async def test_sessions_that_are_always_unknown_end_in_an_error(
    fake: tuple[FakeEngine, str], frames: FrameTransport
) -> None:
    engine, address = fake
    engine.forgotten.update(range(10))
    with pytest.raises(EngineLost):
        await start(frames, address, Sink())
    assert is_idle(frames)


async def test_a_frame_stream_that_ends_fails_its_requests_and_no_later_one(
    fake: tuple[FakeEngine, str], frames: FrameTransport
) -> None:
    engine, address = fake
    sinks = [Sink(), Sink()]
    runs = [start(frames, address, sink) for sink in sinks]
    calls = await engine.next_call(2)
    engine.end_frames(1)
    await until(lambda: all(isinstance(sink.error, EngineLost) for sink in sinks))
    for run in runs:
        run.cancel()  # as the request does when it hears of it
    await until(lambda: is_idle(frames) and not engine.calls)
    assert calls
    later = Sink()
    run = start(frames, address, later)
    [call] = await engine.next_call()
    assert call[0] == 2
    engine.send(2, (call[1], 7), ends={call[1]: LENGTH_END})
    engine.answer(call)
    await run
    assert later.token_ids == [7]


async def test_a_refused_call_raises_the_engines_error(fake: tuple[FakeEngine, str], frames: FrameTransport) -> None:
    engine, address = fake
    run = start(frames, address, Sink())
    [call] = await engine.next_call()
    engine.refuse(call, ContextLengthExceeded("10 + 20 > 25", "max_tokens"))
    with pytest.raises(ContextLengthExceeded, match=r"10 \+ 20 > 25") as caught:
        await run
    assert caught.value.param == "max_tokens"
    assert is_idle(frames)


@pytest.mark.parametrize("make", [lambda: FrameTransport("test", structlog.get_logger()), CallTransport])
async def test_nobody_at_the_address(make: Any) -> None:
    [port] = free_ports(1)
    transport = make()
    with pytest.raises(EngineLost):
        await run(transport, f"127.0.0.1:{port}", REQUEST, Sink())
    assert is_idle(transport)
    await transport.close()


@pytest.mark.parametrize("make", [lambda: FrameTransport("test", structlog.get_logger()), CallTransport])
async def test_a_real_engine_by_both_transports(make: Any) -> None:
    transport, sink = make(), Sink()
    async with running_engine(scripted(5, 6, 7)) as engine:
        address = f"127.0.0.1:{engine.station.port}"
        await run(transport, address, real_request(max_tokens=4), sink)
        assert (sink.token_ids, sink.starts) == ([5, 6, 7, 5], 1)
        assert sink.end is not None
        assert sink.end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        with pytest.raises(InvalidArgument) as caught:
            await run(transport, address, real_request(prompt=[10**6], max_tokens=4), Sink())
        assert caught.value.param == "prompt_ids"
        assert is_idle(transport)
        await engine.until_idle()
        await transport.close()


@pytest.mark.parametrize("make", [lambda: FrameTransport("test", structlog.get_logger()), CallTransport])
async def test_fieldbug_20_cancelling_frees_the_sequence(make: Any) -> None:
    transport, sink = make(), Sink()
    executor = GatedExecutor(scripted(5, 6, 7))
    async with running_engine(executor) as engine:
        run = start(transport, f"127.0.0.1:{engine.station.port}", sink, real_request(max_tokens=100))
        executor.allow(2)
        await until(lambda: len(sink.token_ids) >= 1)
        run.cancel()
        await until(lambda: is_idle(transport))
        await engine.until_handlers_gone()
        executor.allow(3)
        await engine.until_idle()
        assert len(sink.token_ids) <= 2
        assert sink.end is None
        await transport.close()


async def test_a_link_is_dropped_when_its_engine_is_gone_and_opened_again() -> None:
    links = EngineLinks()
    [port] = free_ports(1)
    async with running_engine(scripted(5), port=port):
        with links.use(f"127.0.0.1:{port}") as link:
            await link.stub.GetModel(engine_pb2.GetModelRequest(), wait_for_ready=True)
        assert len(links) == 1  # connected, so it is kept for the next request
    await until(lambda: len(links) == 0)
    async with running_engine(scripted(5), port=port, wait=False):
        with links.use(f"127.0.0.1:{port}") as link:
            await link.stub.GetModel(engine_pb2.GetModelRequest(), wait_for_ready=True)
    await until(lambda: len(links) == 0)
    await links.close()


async def test_links_are_bounded_and_unused_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_links, "MAX_LINKS", 2)
    links = EngineLinks()
    async with running_engine(scripted(5)) as kept, running_engine(scripted(5)) as idle:
        with links.use(f"127.0.0.1:{idle.station.port}") as link:
            await link.stub.GetModel(engine_pb2.GetModelRequest(), wait_for_ready=True)
        assert len(links) == 1  # connected, in use by none
        with links.use(f"127.0.0.1:{kept.station.port}") as first, links.use("one.invalid:1"):
            assert len(links) == 2
            with pytest.raises(QueueFull, match="2 engines"), links.use("two.invalid:1"):
                pytest.fail("a third link")
            with links.use(f"127.0.0.1:{kept.station.port}") as again:  # one that is open is no new one
                assert again is first
    await links.close()


@pytest.mark.parametrize("make", [lambda: FrameTransport("test", structlog.get_logger()), CallTransport])
async def test_a_peer_that_is_no_engine(make: Any) -> None:
    transport = make()
    async with served() as tokenizer:
        with pytest.raises(EngineLost, match="another service"):
            await run(transport, tokenizer.address, REQUEST, Sink())
        assert is_idle(transport)
        await transport.close()


async def test_a_link_in_use_stays_while_the_engine_restarts() -> None:
    links = EngineLinks()
    [port] = free_ports(1)
    with links.use(f"127.0.0.1:{port}") as link:
        for _ in range(2):
            async with running_engine(scripted(5), port=port, wait=False):
                await link.stub.GetModel(engine_pb2.GetModelRequest(), wait_for_ready=True)
        assert len(links) == 1
    await until(lambda: len(links) == 0)
    await links.close()

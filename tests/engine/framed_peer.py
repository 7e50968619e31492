"""A peer of the engine's frame stream, as the detokenizer is one: one reader, many calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from services.pb.postroad.v1 import engine_pb2
from tests.engine.running_engine import Generated, RunningEngine
from tests.support.polling import WAIT_SECONDS


class FramedPeer:
    """Collects what each handle got."""

    def __init__(self, engine: RunningEngine, call: Any, session_id: int) -> None:
        self.call = call
        self.session_id = session_id
        self.by_handle: dict[int, Generated] = {}
        self.steps: list[int] = []
        self._engine = engine
        self._changed = asyncio.Condition()

    async def read(self) -> None:
        """Reads frames until the stream ends."""
        while (frame := await self.call.read()) is not grpc.aio.EOF:
            self.steps.append(frame.step)
            assert len(frame.handles) == len(frame.token_ids)
            for event in frame.events:
                if event.HasField("start"):
                    got = self.by_handle.setdefault(event.handle, Generated())
                    assert got.start is None, "a second start"
                    got.start = event.start
                if event.HasField("prompt_logprobs"):
                    got = self.by_handle.setdefault(event.handle, Generated())
                    assert not got.token_ids, "the prompt's scores after its output"
                    got.prompt_logprobs.MergeFrom(event.prompt_logprobs)
            for scores in frame.logprobs:
                assert len(scores.logprobs.logprobs) == list(frame.handles).count(scores.handle)
                self.by_handle[scores.handle].logprobs.MergeFrom(scores.logprobs)
            for handle, token_id in zip(frame.handles, frame.token_ids, strict=True):
                assert self.by_handle[handle].end is None, "a token after the end"
                self.by_handle[handle].token_ids.append(token_id)
            for event in frame.events:
                if event.HasField("end"):
                    got = self.by_handle.setdefault(event.handle, Generated())
                    assert got.end is None, "a second end"
                    got.end = event.end
            async with self._changed:
                self._changed.notify_all()

    def generate(self, handle: int, message: engine_pb2.GenerateRequest, **options: Any) -> Any:
        """The call of one request."""
        framed = engine_pb2.GenerateFramedRequest(session_id=self.session_id, handle=handle, request=message)
        return self._engine.stub.GenerateFramed(framed, **options)

    async def tokens(self, handle: int, count: int) -> None:
        """Returns when the handle got so many tokens."""
        await self._wait_for(lambda: handle in self.by_handle and len(self.by_handle[handle].token_ids) >= count)

    async def end(self, handle: int) -> engine_pb2.StreamEnd:
        """The handle's terminal event."""
        await self._wait_for(lambda: handle in self.by_handle and self.by_handle[handle].end is not None)
        end = self.by_handle[handle].end
        assert end is not None
        return end

    async def _wait_for(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(condition)


@asynccontextmanager
async def framed_peer(engine: RunningEngine) -> AsyncIterator[FramedPeer]:
    """Opens a session, reads its frames, and leaves it at the end."""
    call = engine.stub.OpenFrames(engine_pb2.OpenFramesRequest(peer="test"))
    first = await call.read()
    assert first.session_id != 0
    peer = FramedPeer(engine, call, first.session_id)
    reader = asyncio.create_task(peer.read())
    try:
        yield peer
    finally:
        call.cancel()
        with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await reader

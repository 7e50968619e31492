"""An engine whose frames and answers a test writes: for orders of events that a real one makes by chance only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from services.common.errors import PostroadError, SessionUnknown, abort
from services.pb.postroad.v1 import common_pb2, engine_pb2, engine_pb2_grpc

LENGTH_END = engine_pb2.StreamEnd(finish_reason=common_pb2.FINISH_REASON_LENGTH)


class FakeEngine(engine_pb2_grpc.EngineServicer):
    """Sessions are numbered from 1; `forgotten` ones are unknown. Calls wait until `answer` or `refuse`."""

    def __init__(self) -> None:
        self.forgotten: set[int] = set()
        self.contexts: list[Any] = []  # of all calls so far
        self.calls: dict[tuple[int, int], asyncio.Future[PostroadError | None]] = {}  # by session and handle
        self._frames: dict[int, asyncio.Queue[engine_pb2.StepFrame | None]] = {}
        self._arrived = asyncio.Condition()

    @property
    def num_sessions(self) -> int:
        """Sessions opened so far."""
        return len(self._frames)

    async def next_call(self, number: int = 1) -> list[tuple[int, int]]:
        """Session and handle of all waiting calls, once there are `number` of them."""
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(lambda: len(self.calls) >= number)
        return list(self.calls)

    def send(
        self,
        session: int,
        *tokens: tuple[int, int],
        starts: tuple[int, ...] = (),
        ends: dict[int, engine_pb2.StreamEnd] | None = None,
    ) -> None:
        """One frame: (handle, token) pairs, first-token events, ends by handle."""
        events = [engine_pb2.FrameEvent(handle=h, start=engine_pb2.StreamStart(prefill_us=1)) for h in starts]
        events += [engine_pb2.FrameEvent(handle=h, end=end) for h, end in (ends or {}).items()]
        handles, token_ids = [h for h, _ in tokens], [t for _, t in tokens]
        self._frames[session].put_nowait(engine_pb2.StepFrame(handles=handles, token_ids=token_ids, events=events))

    def end_frames(self, session: int) -> None:
        """Ends the frame stream, and nothing else."""
        self._frames[session].put_nowait(None)

    def answer(self, call: tuple[int, int]) -> None:
        """The call returns."""
        self.calls[call].set_result(None)

    def refuse(self, call: tuple[int, int], error: PostroadError) -> None:
        """The call ends with an error."""
        self.calls[call].set_result(error)

    async def OpenFrames(self, request: engine_pb2.OpenFramesRequest, context: Any) -> None:
        session = len(self._frames) + 1
        queue = self._frames[session] = asyncio.Queue()
        await context.write(engine_pb2.StepFrame(session_id=session))
        while (frame := await queue.get()) is not None:
            await context.write(frame)

    async def GenerateFramed(self, request: engine_pb2.GenerateFramedRequest, context: Any) -> Any:
        if request.session_id in self.forgotten:
            await abort(context, SessionUnknown("never heard of it"))
        key = request.session_id, request.handle
        self.contexts.append(context)
        self.calls[key] = asyncio.get_running_loop().create_future()
        async with self._arrived:
            self._arrived.notify_all()
        try:
            error = await self.calls[key]
        finally:
            del self.calls[key]
        if error is not None:
            await abort(context, error)
        return engine_pb2.GenerateFramedResponse(end=LENGTH_END)


@asynccontextmanager
async def fake_engine() -> AsyncIterator[tuple[FakeEngine, str]]:
    """A fake engine and its address."""
    engine, server = FakeEngine(), grpc.aio.server()
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield engine, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)

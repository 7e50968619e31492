"""One frame session with one engine: a stream of step frames, and the requests whose tokens ride it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.errors import EngineLost, SessionUnknown
from services.common.open_call import OpenCall
from services.detokenizer.token_sink import TokenSink, engine_error
from services.pb.postroad.v1 import engine_pb2, engine_pb2_grpc

OPEN_TIMEOUT = 5.0  # seconds until the first frame
_HANDLES = 1 << 32

GenerateCall = OpenCall[engine_pb2.GenerateFramedRequest, engine_pb2.GenerateFramedResponse]
FrameStream = grpc.aio.UnaryStreamCall[engine_pb2.OpenFramesRequest, engine_pb2.StepFrame]


class _Rider:
    """A running request: where its tokens go, and whether its terminal event has come."""

    __slots__ = ("ended", "sink")

    def __init__(self, sink: TokenSink) -> None:
        self.sink = sink
        self.ended = asyncio.Event()


class FrameSession:
    """Made by `open`. `on_lost` is called once, when the session can take no more requests."""

    def __init__(
        self,
        frames: FrameStream,
        session_id: int,
        on_lost: Callable[[], object],
        log: FilteringBoundLogger,
    ) -> None:
        self._frames = frames
        self._session_id = session_id
        self._on_lost = on_lost
        self._log = log
        self._lost = False
        self._riders: dict[int, _Rider] = {}  # by handle
        self._last_handle = 0
        # The stream's one reader. It ends with the stream, and the stream with it.
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, stub: engine_pb2_grpc.EngineStub, peer: str, on_lost: Callable[[], object], log: FilteringBoundLogger
    ) -> Self:
        """Opens a session; `peer` names this station in the engine's log. Raises EngineLost."""
        frames: FrameStream = stub.OpenFrames(engine_pb2.OpenFramesRequest(peer=peer))
        try:
            first = await asyncio.wait_for(frames.read(), OPEN_TIMEOUT)  # a time-out cancels the call
        except TimeoutError:
            raise EngineLost(f"the engine opened no frame stream within {OPEN_TIMEOUT:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise engine_error(error) from error
        if not isinstance(first, engine_pb2.StepFrame):
            raise EngineLost("the engine ended the frame stream at once")
        return cls(frames, first.session_id, on_lost, log)

    def __len__(self) -> int:
        return len(self._riders)

    async def run(self, request: engine_pb2.GenerateRequest, call: GenerateCall, sink: TokenSink) -> None:
        """Runs one request by its call; see `EngineRun.run`. Raises SessionUnknown if the session is no more."""
        if self._lost:
            raise SessionUnknown("the frame session was lost")
        handle = self._free_handle()
        rider = self._riders[handle] = _Rider(sink)
        message = engine_pb2.GenerateFramedRequest(session_id=self._session_id, handle=handle, request=request)
        try:
            await call.send(message)
            await call.response()
            # The call and the frames have no mutual order: the last tokens may still be on their way.
            await rider.ended.wait()
        except grpc.aio.AioRpcError as error:
            raise engine_error(error) from error
        finally:
            call.close()
            del self._riders[handle]

    def give_up(self, error: EngineLost) -> None:
        """Ends all requests of the session, which is no more. Idempotent."""
        if self._lost:
            return
        self._lost = True
        self._frames.cancel()
        self._on_lost()
        for rider in self._riders.values():
            rider.sink.on_error(error)
            rider.ended.set()

    def _free_handle(self) -> int:
        while True:
            self._last_handle = (self._last_handle + 1) % _HANDLES
            if self._last_handle not in self._riders:
                return self._last_handle

    async def _read(self) -> None:
        reason = "the engine ended the frame stream"
        try:
            while isinstance(frame := await self._frames.read(), engine_pb2.StepFrame):
                self._deliver(frame)
        except grpc.aio.AioRpcError as error:
            reason = "the connection to the engine broke"
            self._log.warning("frame stream broke", cause=error.details())
        finally:
            self.give_up(EngineLost(reason))

    def _deliver(self, frame: engine_pb2.StepFrame) -> None:
        """Hands a frame's tokens to their requests. Unknown handles are those of requests that were cancelled."""
        riders = self._riders
        ends: dict[int, engine_pb2.StreamEnd] = {}
        for event in frame.events:
            rider = riders.get(event.handle)
            if event.HasField("end"):
                ends[event.handle] = event.end
            elif rider is not None and event.HasField("prompt_logprobs"):
                rider.sink.on_prompt_scores(event.prompt_logprobs)
            elif rider is not None:
                rider.sink.on_start(event.start)
        tokens: dict[int, list[int]] = {}
        for handle, token_id in zip(frame.handles, frame.token_ids, strict=True):
            tokens.setdefault(handle, []).append(token_id)
        scores = {entry.handle: entry.logprobs for entry in frame.logprobs}
        for handle, token_ids in tokens.items():
            if handle not in ends and (rider := riders.get(handle)) is not None:
                rider.sink.on_tokens(token_ids, scores.get(handle))
        for handle, end in ends.items():
            if (rider := riders.get(handle)) is not None:
                rider.sink.on_end(tokens.get(handle, ()), end, scores.get(handle))
                rider.ended.set()

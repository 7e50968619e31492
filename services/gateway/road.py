"""A request's journey through the stations: prompt → token ids → text, each hop tried once more where that is safe."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.errors import DETAILS_KEY, Internal, PostroadError, Unavailable, from_rpc
from services.common.request_context import RequestContext
from services.gateway import wire
from services.gateway.deltas import Delta
from services.gateway.errors import is_transient
from services.gateway.prompts import ChatPrompt, IdsPrompt, Prompt, TextPrompt
from services.gateway.replicas import Engine, Stations
from services.gateway.timings import RequestTimes
from services.gateway.waiting_room import WaitingRoom
from services.pb.postroad.v1 import detokenizer_pb2, detokenizer_pb2_grpc, tokenizer_pb2_grpc


class Road:
    """Calls the stations for one gateway. All state of a request lives in the frames of its calls.

    `retry_wait`: seconds that a request without a token yet waits for a station to come back; `waiting` bounds how many
    do so.
    """

    def __init__(self, stations: Stations, retry_wait: float, waiting: WaitingRoom, log: FilteringBoundLogger) -> None:
        self._stations = stations
        self._waiting = waiting
        self._retry_wait = retry_wait
        self._log = log
        self._tokenizer = tokenizer_pb2_grpc.TokenizerStub(stations.tokenizer.channel)
        self._detokenizer = detokenizer_pb2_grpc.DetokenizerStub(stations.detokenizer.channel)

    async def token_ids(self, prompt: Prompt, context: RequestContext, times: RequestTimes) -> list[int]:
        """The prompt's token ids. Raises what the tokenizer raises, or Unavailable when it does not come back."""
        if isinstance(prompt, IdsPrompt):
            return prompt.ids
        try:
            return await self._tokenise(prompt, context, times)
        except PostroadError as error:
            if not is_transient(error):
                raise
            with self._waiting.place():
                back = await self._stations.tokenizer.confirm(self.patience(context))
            if not back:
                raise
        return await self._tokenise(prompt, context, times)

    async def _tokenise(
        self, prompt: TextPrompt | ChatPrompt, context: RequestContext, times: RequestTimes
    ) -> list[int]:
        times.tokenise_start = time.monotonic_ns()
        metadata, timeout = context.metadata(), context.time_remaining()
        try:
            if isinstance(prompt, ChatPrompt):
                request = wire.render_request(prompt)
                ids = (await self._tokenizer.RenderChat(request, metadata=metadata, timeout=timeout)).ids
            else:
                encode = wire.encode_request(prompt)
                ids = (await self._tokenizer.Encode(encode, metadata=metadata, timeout=timeout)).encodings[0].ids
        except grpc.aio.AioRpcError as error:
            raise self._typed(error, "tokenizer", context) from None
        times.tokenise_end = time.monotonic_ns()
        return list(ids)

    async def generate(
        self, request: detokenizer_pb2.GenerateTextRequest, context: RequestContext, times: RequestTimes
    ) -> AsyncGenerator[Delta, None]:
        """The request's text; the last delta has the ending. Closing the generator cancels the work.

        Before the first delta a failure that may pass is tried once more: on another engine, or on the same one after
        it says that it serves. After the first delta it is raised.
        """
        failed: Engine | None = None
        until = self.patience(context)
        while True:
            with self._waiting.place():
                engine = await self._stations.engines.choose(until, avoid=failed)
            try:
                async with aclosing(self._run(engine, request, context, times)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except PostroadError as error:
                if failed is not None or times.first_delta or not is_transient(error):
                    raise
                self._log.warning("generate failed", request_id=context.request_id, reason=error.reason)
                until = self.patience(context)
                with self._waiting.place():
                    recovered = await self._recovered(engine, until)
                if not recovered:
                    raise
                failed = engine

    async def _run(
        self, engine: Engine, request: detokenizer_pb2.GenerateTextRequest, context: RequestContext, times: RequestTimes
    ) -> AsyncGenerator[Delta, None]:
        """One try on one engine."""
        times.generate_start = time.monotonic_ns()
        metadata = replace(context, engine=engine.address).metadata()
        call = self._detokenizer.Generate(request, metadata=metadata, timeout=context.time_remaining())
        last: Delta | None = None
        try:
            with engine.request():
                while (message := await call.read()) is not grpc.aio.EOF:
                    delta = wire.read_delta(message)
                    if not times.first_delta:
                        times.first_delta, times.engine_start = time.monotonic_ns(), delta.start
                    if delta.ending is None:
                        yield delta
                    else:
                        last = delta  # handed on after the call's status: a request has one terminal event
        except grpc.aio.AioRpcError as error:
            raise self._typed(error, "detokenizer", context) from None
        finally:
            call.cancel()
        if last is None or last.ending is None:
            raise Internal("the stations ended the request without a finish reason")
        times.generate_end, times.stations = time.monotonic_ns(), last.ending.times
        yield last

    async def _recovered(self, engine: Engine, until: float) -> bool:
        """Waits until another try makes sense: the detokenizer serves, and so does `engine` or another one."""
        if not await self._stations.detokenizer.confirm(until):
            return False
        others = [other for other in self._stations.engines.replicas if other is not engine]
        return any(other.serving.is_set() for other in others) or await engine.confirm(until)

    def patience(self, context: RequestContext) -> float:
        """Until when a request waits for a station, seconds of time.monotonic()."""
        until = time.monotonic() + self._retry_wait
        return until if context.deadline is None else min(until, context.deadline)

    def _typed(self, error: grpc.aio.AioRpcError, station: str, context: RequestContext) -> PostroadError:
        """The call's error. Texts of gRPC itself name addresses inside; they stay in the log."""
        typed = from_rpc(error)
        self._log.info(
            "call failed", request_id=context.request_id, peer=station, reason=typed.reason, cause=error.details()
        )
        by_station = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
        if by_station or typed.status in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED):
            return typed
        if is_transient(typed):
            return Unavailable(f"the connection to the {station} failed")
        return Internal("internal error")

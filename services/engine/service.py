"""The RPCs of engine.proto and the read-out: the only place that knows gRPC.

The streaming handlers are coroutines that write, not generators: where a call is cancelled while a message is written,
the cancellation is raised in the handler itself, so that its `finally` runs at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.errors import NotReady, PostroadError, Unavailable, rpc_errors
from services.common.live_requests import LiveRequests
from services.common.request_context import RequestContext
from services.engine import wire
from services.engine.engine import Engine
from services.engine.reporting import RequestRecord, RequestReporter
from services.engine.requests import EmbeddedRequest, LiveRequest, StreamedRequest
from services.engine.served_model import ServedModel
from services.engine.sessions import FramedRequest, SessionTable
from services.pb.postroad.v1 import debug_pb2, engine_pb2, engine_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class EngineServicer(engine_pb2_grpc.EngineServicer):
    """Serves what has been published so far: nothing, then the model's files, then the engine."""

    def __init__(self, live: LiveRequests, reporter: RequestReporter, log: FilteringBoundLogger) -> None:
        self._live = live
        self._reporter = reporter
        self._log = log
        self._sessions = SessionTable()
        self._model: ServedModel | None = None
        self._engine: Engine | None = None

    def publish_model(self, model: ServedModel) -> None:
        """From now on GetModel and GetTokenizerFiles answer."""
        self._model = model

    def publish_engine(self, engine: Engine) -> None:
        """From now on requests are admitted."""
        self._engine = engine

    async def Generate(self, request: engine_pb2.GenerateRequest, context: Context) -> None:
        async with self._request(context) as record:
            engine = self._ready_engine()
            streamed = StreamedRequest(await engine.sequence_of(request), record)
            with _admitted(engine, streamed):
                while True:
                    message = await streamed.next_message()
                    await context.write(message)
                    if message.HasField("end"):
                        return

    async def OpenFrames(self, request: engine_pb2.OpenFramesRequest, context: Context) -> None:
        async with rpc_errors(context, self._log, ""):
            engine = self._ready_engine()
            session = self._sessions.open(request.peer)
            self._log.info("frame session opened", session=session.session_id, peer=request.peer)
            try:
                await context.write(engine_pb2.StepFrame(session_id=session.session_id))
                while await session.wait():
                    await context.write(session.take_frame(engine.step_number))
            finally:
                self._sessions.remove(session)
                orphans = session.abandon(Unavailable("the session's frame stream ended"))
                for orphan in orphans:
                    engine.abort(orphan)
                self._log.info(
                    "frame session ended", session=session.session_id, peer=request.peer, aborted=len(orphans)
                )

    async def GenerateFramed(
        self, request: engine_pb2.GenerateFramedRequest, context: Context
    ) -> engine_pb2.GenerateFramedResponse:
        async with self._request(context) as record:
            engine = self._ready_engine()
            sequence = await engine.sequence_of(request.request)
            session = self._sessions.get(request.session_id)
            session.require_free(request.handle)
            framed = FramedRequest(sequence, record, session, request.handle)
            with _admitted(engine, framed):
                session.requests[request.handle] = framed
                response = engine_pb2.GenerateFramedResponse(end=await framed.outcome)
        return response

    async def Embed(self, request: engine_pb2.EmbedRequest, context: Context) -> engine_pb2.EmbedResponse:
        async with self._request(context) as record:
            engine = self._ready_engine()
            embedded = EmbeddedRequest(engine.embedding_sequence_of(request), record)
            with _admitted(engine, embedded):
                response = await embedded.outcome
        return response

    async def GetModel(self, request: engine_pb2.GetModelRequest, context: Context) -> engine_pb2.GetModelResponse:
        async with rpc_errors(context, self._log, ""):
            model = self._read_model()
        return wire.model_response(model, self._engine.limits.max_model_len if self._engine is not None else 0)

    async def GetTokenizerFiles(self, request: engine_pb2.GetTokenizerFilesRequest, context: Context) -> None:
        async with rpc_errors(context, self._log, ""):
            for chunk in wire.tokenizer_file_chunks(self._read_model()):
                await context.write(chunk)

    def end_requests(self, error: PostroadError) -> None:
        """Ends all running requests with `error`, admits no more, and ends the frame streams after their last frame."""
        if self._engine is not None:
            self._engine.close(error)
        self._sessions.finish_all()

    def read_out(self) -> debug_pb2.ReadOutResponse:
        """Sizes of all maps with an entry per request, here and in the engine thread, as of the last step."""
        response = debug_pb2.ReadOutResponse()
        response.requests["live"] = len(self._live)
        response.requests["session_handles"] = self._sessions.num_requests
        response.requests["session_unsent"] = self._sessions.num_unsent
        response.counters["frame_sessions_opened"] = self._sessions.num_opened
        if self._engine is not None:
            response.requests["engine_live"] = self._engine.num_live
            response.requests["grammars_pending"] = self._engine.num_grammars_pending
            for name, size in self._engine.state.requests.items():
                response.requests[name] = size
            response.kv.CopyFrom(wire.kv_read_out(self._engine.state))
            for name, total in dataclasses.asdict(self._engine.counters).items():
                response.counters[name] = total
        return response

    def _read_model(self) -> ServedModel:
        if self._model is None:
            raise NotReady("the model's files are still being read")
        return self._model

    def _ready_engine(self) -> Engine:
        if self._engine is None:
            raise NotReady("the model's weights are still being loaded")
        return self._engine

    @asynccontextmanager
    async def _request(self, context: Context) -> AsyncIterator[RequestRecord]:
        """Around the handler of a request: counts it, tells of its rejection, turns errors into statuses."""
        call = RequestContext.from_grpc(context)
        record = self._reporter.open(call)
        async with rpc_errors(context, self._log, call.request_id):
            try:
                with self._live.enter():
                    yield record
            except PostroadError as error:
                record.rejected(error)
                raise


@contextmanager
def _admitted(engine: Engine, request: LiveRequest) -> Iterator[None]:
    """Admits a request; frees its sequence if the call ends before it, by cancellation, deadline or error."""
    engine.submit(request)
    try:
        yield
    finally:
        engine.abort(request)

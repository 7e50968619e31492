"""The RPC edge of the detokenizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from structlog.typing import FilteringBoundLogger

from services.common.engine_address import parse_engine_address
from services.common.errors import Internal, InvalidArgument, NotReady, PostroadError, rpc_errors
from services.common.live_requests import LiveRequests
from services.common.request_context import ENGINE_KEY, RequestContext
from services.common.tracing import Tracing
from services.common.undecodable import undecodable
from services.detokenizer.accounting import Timeline
from services.detokenizer.echo import Echo
from services.detokenizer.loaded_tokenizer import LoadedTokenizer
from services.detokenizer.pacing import Pacer
from services.detokenizer.pipeline import TextPipeline
from services.detokenizer.reporting import Departure, NoRequest, Reporter
from services.detokenizer.scored_tokens import PromptTokens, ScoredPipeline
from services.detokenizer.stop import StopMatcher
from services.detokenizer.text_stream import TextStream
from services.detokenizer.token_sink import EngineRun, EngineTransport
from services.pb.postroad.v1 import debug_pb2, detokenizer_pb2, detokenizer_pb2_grpc, engine_pb2

SERVICE = "postroad.v1.Detokenizer"
MAX_STOPS = 16
MAX_STOP_CHARS = 1024

Context = grpc.aio.ServicerContext[Any, Any]


class DetokenizerService(detokenizer_pb2_grpc.DetokenizerServicer):
    """Generate and Decode with the tokenizer files that `load` was last called with.

    `engine` is the address for requests whose metadata names none.
    """

    def __init__(
        self,
        *,
        engine: str,
        transport: EngineTransport,
        pacer: Pacer,
        live: LiveRequests,
        reporter: Reporter,
        tracing: Tracing,
        log: FilteringBoundLogger,
    ) -> None:
        self._engine = engine
        self._transport = transport
        self._pacer = pacer
        self._live = live
        self._reporter = reporter
        self._tracing = tracing
        self._log = log
        self._loaded: LoadedTokenizer | None = None
        self._runs: set[asyncio.Task[None]] = set()  # engine calls; some return a little after their request has left

    async def load(self, files: Mapping[str, bytes], vocab_size: int) -> None:
        """Takes the engine's tokenizer files; requests that run keep what they began with."""
        self._loaded = await asyncio.to_thread(LoadedTokenizer.from_files, files, vocab_size)

    def read_out(self) -> debug_pb2.ReadOutResponse:
        """What the station holds at this moment."""
        held = {"live_requests": len(self._live), "engine_runs": len(self._runs), "paced_streams": len(self._pacer)}
        return debug_pb2.ReadOutResponse(requests=held | self._transport.read_out())

    async def Decode(self, request: detokenizer_pb2.DecodeRequest, context: Context) -> detokenizer_pb2.DecodeResponse:
        caller = RequestContext.from_grpc(context)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        async with rpc_errors(context, self._log, caller.request_id):
            with self._live.enter():
                text = await asyncio.to_thread(self._tokenizer().decode, request.ids, skip_special_tokens=skip)
        return detokenizer_pb2.DecodeResponse(text=text)

    async def Generate(self, _requests: object, context: Context) -> None:
        """Serves a call from its opening on, which may be well before its one request: see `register`."""
        # A coroutine that writes, not a generator that yields: a cancellation reaches its `finally` at once, whereas a
        # generator that is suspended at `yield` learns of it when it is collected.
        timeline, departure = Timeline.begin(), Departure()
        caller = RequestContext.from_grpc(context)
        span = self._tracing.open("detokenizer.generate", caller.traceparent)
        try:
            async with rpc_errors(context, self._log, caller.request_id):
                with departure.noted(), ExitStack() as held:
                    engine = self._open_engine(replace(caller, traceparent=span.traceparent))
                    held.callback(engine.close)
                    request = await _request_of(context)
                    timeline.arrival, departure.has_request = time.perf_counter_ns(), True
                    with self._live.enter():
                        stream = departure.stream = await self._open_stream(request, timeline)
                        run = self._start_engine(engine, caller.request_id, request.request, stream)
                        held.pop_all()  # it is the run's from here on
                        try:
                            await self._send(stream, run, context, departure)
                        finally:
                            _leave_engine(run, stream)
        finally:
            if not departure.was_taken_back:
                # After the call's status, which the gateway waits for.
                asyncio.get_running_loop().call_soon(self._reporter.report, caller, departure, timeline, span)

    async def _send(self, stream: TextStream, run: asyncio.Task[None], context: Context, departure: Departure) -> None:
        is_last = False
        while not is_last:
            delta = await stream.next_delta()
            if is_last := delta.HasField("end"):
                _leave_engine(run, stream)  # before a write that a slow caller may hold up
            departure.messages += 1
            await context.write(delta)

    def _tokenizer(self) -> LoadedTokenizer:
        if self._loaded is None:
            raise NotReady("the tokenizer files have not arrived from the engine yet")
        return self._loaded

    async def _open_stream(self, request: detokenizer_pb2.GenerateTextRequest, timeline: Timeline) -> TextStream:
        _check_stops(request.stop)
        loaded, inner = self._tokenizer(), request.request
        prompt_ids = inner.prompt_ids
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        echo: Echo | None = None
        if request.echo:  # on a thread: a long prompt takes a while
            echo = await asyncio.to_thread(Echo.of, loaded.make_decoder, prompt_ids, skip_special_tokens=skip)
        text = "" if echo is None else echo.text
        pipeline = TextPipeline(
            loaded.make_decoder(prompt_ids, skip_special_tokens=skip) if echo is None else echo.decoder,
            StopMatcher(request.stop, request.include_stop_str_in_output),
            inner.stop.min_tokens,
            num_shown=len(text),
            note_offsets=request.report_token_offsets,
        )
        scored = prompt_tokens = None
        if inner.HasField("logprobs"):
            scored = ScoredPipeline(pipeline, loaded.token_texts)
        if inner.HasField("prompt_logprobs") and prompt_ids:  # without a prompt the engine refuses the request
            prompt_tokens = PromptTokens(loaded.token_texts, prompt_ids, None if echo is None else echo.offsets)
        return TextStream(
            pipeline,
            self._pacer,
            timeline,
            len(prompt_ids),
            self._log,
            echo=text,
            scored=scored,
            prompt_scores=prompt_tokens,
        )

    def _open_engine(self, caller: RequestContext) -> EngineRun:
        return self._transport.open(self._engine if caller.engine is None else _parse_engine(caller.engine), caller)

    def _start_engine(
        self, engine: EngineRun, request_id: str, request: engine_pb2.GenerateRequest, stream: TextStream
    ) -> asyncio.Task[None]:
        """Runs the request in a task, which closes `engine`."""
        stream.timeline.engine_called = time.perf_counter_ns()
        run = asyncio.create_task(self._run_engine(engine, request_id, request, stream))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        run.add_done_callback(lambda _: engine.close())  # also of a task that is cancelled before it begins
        return run

    async def _run_engine(
        self, engine: EngineRun, request_id: str, request: engine_pb2.GenerateRequest, stream: TextStream
    ) -> None:
        try:
            await engine.run(request, stream)
        except PostroadError as error:
            if isinstance(cause := error.__cause__, grpc.aio.AioRpcError):
                self._log.info(
                    "engine call failed",
                    request_id=request_id,
                    engine=engine.address,
                    reason=error.reason,
                    cause=cause.details(),
                )
            stream.on_error(error)
        except Exception:
            self._log.exception("unexpected error", request_id=request_id)
            stream.on_error(Internal("internal error"))


def register(service: DetokenizerService, server: grpc.aio.Server) -> None:
    """Adds the service to a server.

    Generate is served as a stream of requests, of which there is one. On the wire that is the same, and the handler
    starts when the call is opened: what it needs of the engine is opened while the caller still makes the request.
    """
    detokenizer_pb2_grpc.add_DetokenizerServicer_to_server(service, server)
    generate = grpc.stream_stream_rpc_method_handler(
        service.Generate,
        request_deserializer=_message_or_none,
        response_serializer=detokenizer_pb2.TextDelta.SerializeToString,
    )
    server.add_registered_method_handlers(SERVICE, {"Generate": generate})


def _message_or_none(data: bytes) -> detokenizer_pb2.GenerateTextRequest | None:
    try:
        return detokenizer_pb2.GenerateTextRequest.FromString(data)
    except DecodeError:
        return None


async def _request_of(context: Context) -> detokenizer_pb2.GenerateTextRequest:
    """The call's one message."""
    message = await context.read()
    if message is grpc.aio.EOF:  # of a call that is cancelled, too
        raise NoRequest("the call has no request")
    if not isinstance(message, detokenizer_pb2.GenerateTextRequest):
        raise undecodable()
    return message


def _leave_engine(run: asyncio.Task[None], stream: TextStream) -> None:
    """Ends the engine's work on the request. Where the engine has ended it, the call returns by itself."""
    if stream.needs_engine:
        run.cancel()


def _parse_engine(given: str) -> str:
    try:
        return parse_engine_address(given)
    except ValueError as error:
        raise InvalidArgument(f"{ENGINE_KEY}: {error}", ENGINE_KEY) from None


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidArgument(f"stop: at most {MAX_STOPS} strings, not {len(stops)}", "stop")
    if any(not stop for stop in stops):
        raise InvalidArgument("stop: a stop string must not be empty", "stop")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise InvalidArgument(f"stop: a stop string has at most {MAX_STOP_CHARS} characters", "stop")

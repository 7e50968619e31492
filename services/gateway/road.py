"""A request's journey through the stations: prompts → token ids → text, each hop tried once more where that is safe."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import TypeVar

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.errors import DETAILS_KEY, Internal, PostroadError, Unavailable, from_rpc
from services.common.request_context import RequestContext
from services.gateway import wire
from services.gateway.bounded import map_bounded
from services.gateway.calls_ahead import CallsAhead
from services.gateway.deltas import Delta
from services.gateway.embeddings import Embedding, EmbeddingRun
from services.gateway.errors import is_transient, rename_field
from services.gateway.generate_call import GenerateCall, GenerateCalls
from services.gateway.merging import merge
from services.gateway.prompts import ChatPrompt, EncodedPrompts, IdsPrompts, Prompts, TextPrompts
from services.gateway.render_call import RenderCalls
from services.gateway.replicas import Engine, Station, Stations
from services.gateway.runs import Run
from services.gateway.timings import RequestTimes
from services.gateway.waiting_room import WaitingRoom
from services.pb.postroad.v1 import detokenizer_pb2_grpc, tokenizer_pb2_grpc
from services.pb.postroad.v1.detokenizer_pb2 import TextDelta

T = TypeVar("T")

EMBEDDINGS_AT_ONCE = 64  # of one request: they fill a step, and leave the engine's queue to others


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
        self._render_calls = RenderCalls(stations.tokenizer.channel)
        self._generate_calls = GenerateCalls(stations.detokenizer.channel)

    async def encode(
        self,
        prompts: Prompts,
        context: RequestContext,
        times: RequestTimes,
        ahead: CallsAhead | None = None,
    ) -> EncodedPrompts:
        """The token ids of each prompt. Raises what the tokenizer raises, or Unavailable when it does not come back.

        While the tokenizer works, the call of `ahead` to generate is opened.
        """
        if isinstance(prompts, IdsPrompts):
            return EncodedPrompts(prompts.ids)
        call = partial(self._tokenise, prompts, context, times, ahead)
        return await self._with_retry(call, self._stations.tokenizer, context)

    async def text_of(self, ids: list[int], skip_special_tokens: bool, context: RequestContext) -> str:
        """The text of token ids. Raises what the detokenizer raises, or Unavailable when it does not come back."""
        call = partial(self._decode, ids, skip_special_tokens, context)
        return await self._with_retry(call, self._stations.detokenizer, context)

    async def _with_retry(self, call: Callable[[], Awaitable[T]], station: Station, context: RequestContext) -> T:
        """The call's result; a failure that may pass is tried once more, when the station serves again."""
        try:
            return await call()
        except PostroadError as error:
            if not is_transient(error):
                raise
            with self._waiting.place():
                back = await station.confirm(self.patience(context))
            if not back:
                raise
        return await call()

    async def _decode(self, ids: list[int], skip_special_tokens: bool, context: RequestContext) -> str:
        request = wire.decode_request(ids, skip_special_tokens)
        metadata, timeout = context.metadata(), context.time_remaining()
        try:
            return str((await self._detokenizer.Decode(request, metadata=metadata, timeout=timeout)).text)
        except grpc.aio.AioRpcError as error:
            raise self._typed(error, "detokenizer", context) from None

    async def _tokenise(
        self,
        prompts: TextPrompts | ChatPrompt,
        context: RequestContext,
        times: RequestTimes,
        ahead: CallsAhead | None,
    ) -> EncodedPrompts:
        times.tokenise_start = time.monotonic_ns()
        ahead = ahead or CallsAhead()
        try:
            if isinstance(prompts, ChatPrompt):
                encoded = await self._render(prompts, context, ahead)
            else:
                metadata, timeout = context.metadata(), context.time_remaining()
                encoding = self._tokenizer.Encode(wire.encode_request(prompts), metadata=metadata, timeout=timeout)
                ahead.generate.open()
                encoded = EncodedPrompts([list(one.ids) for one in (await encoding).encodings])
        except grpc.aio.AioRpcError as error:
            typed = self._typed(error, "tokenizer", context)
            if isinstance(prompts, TextPrompts) and len(prompts.texts) == 1:
                rename_field(typed, "texts[0]", "texts")
            raise typed from None
        times.tokenise_end = time.monotonic_ns()
        return encoded

    async def _render(self, prompt: ChatPrompt, context: RequestContext, ahead: CallsAhead) -> EncodedPrompts:
        with closing(ahead.render.take() or self._render_calls.open(context)) as call:
            await call.send(wire.render_request(prompt))
            ahead.generate.open()
            return wire.read_rendered(await call.response())

    def calls_ahead(self, context: RequestContext) -> CallsAhead:
        """For `encode` and `generate_all`: what can be opened before they have anything to send."""

        def open_generate() -> GenerateCall | None:
            engine = self._stations.engines.least_busy()
            return None if engine is None else self._generate_calls.open(engine, context)

        return CallsAhead(lambda: self._render_calls.open(context), open_generate)

    def generate_all(
        self, runs: Sequence[Run], context: RequestContext, ahead: CallsAhead
    ) -> AsyncGenerator[Delta, None]:
        """The text of all runs as it comes; each has an ending in its last delta. Closing cancels the work of all.

        The first run that fails ends the request.
        """
        if len(runs) == 1:
            return self.generate(runs[0], context, ahead)
        one_prompt = all(run.prompt == 0 for run in runs)
        return merge([(self.generate if one_prompt else self._generate_named)(run, context, ahead) for run in runs])

    async def _generate_named(
        self, run: Run, context: RequestContext, ahead: CallsAhead
    ) -> AsyncGenerator[Delta, None]:
        """As `generate`; an error says which of several prompts it is about."""
        try:
            async with aclosing(self.generate(run, context, ahead)) as deltas:
                async for delta in deltas:
                    yield delta
        except PostroadError as error:
            rename_field(error, "prompt_ids", f"prompt_ids[{run.prompt}]")
            raise

    async def generate(self, run: Run, context: RequestContext, ahead: CallsAhead) -> AsyncGenerator[Delta, None]:
        """The run's text; the last delta has the ending. Closing the generator cancels the work.

        Before the first delta a failure that may pass is tried once more: on another engine, or on the same one after
        it says that it serves. After the first delta it is raised.
        """
        failed: Engine | None = None
        call, until = ahead.generate.take(), self.patience(context)
        while True:
            if call is None:
                with self._waiting.place():
                    engine = await self._stations.engines.choose(until, avoid=failed)
                call = self._generate_calls.open(engine, context)
            try:
                async with aclosing(self._try(call, run, context)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except PostroadError as error:
                if failed is not None or run.times.first_delta or not is_transient(error):
                    raise
                self._log.warning("generate failed", request_id=context.request_id, reason=error.reason)
                until = self.patience(context)
                with self._waiting.place():
                    recovered = await self._recovered(call.engine, until)
                if not recovered:
                    raise
                failed, call = call.engine, None

    async def _try(self, call: GenerateCall, run: Run, context: RequestContext) -> AsyncGenerator[Delta, None]:
        """One try on one engine."""
        times = run.times
        times.generate_start = time.monotonic_ns()
        last: Delta | None = None
        scored = wire.is_scored(run.request)
        try:
            with closing(call):
                await call.send(run.request)
                while isinstance(message := await call.read(), TextDelta):
                    delta = wire.read_delta(message, run.choice, scored=scored)
                    if not times.first_delta:
                        times.first_delta, times.engine_start = time.monotonic_ns(), delta.start
                    if delta.ending is None:
                        yield delta
                    else:
                        last = delta  # handed on after the call's status: a request has one terminal event
        except grpc.aio.AioRpcError as error:
            raise self._typed(error, "detokenizer", context) from None
        if last is None or last.ending is None:
            raise Internal("the stations ended the request without a finish reason")
        times.generate_end, times.stations = time.monotonic_ns(), last.ending.times
        yield last

    async def embed_all(self, runs: Sequence[EmbeddingRun], context: RequestContext) -> list[Embedding]:
        """The embeddings of all runs, in their order. The first run that fails ends the request."""

        async def embed(run: EmbeddingRun) -> Embedding:
            try:
                return await self._embed(run, context)
            except PostroadError as error:
                if len(runs) > 1:
                    rename_field(error, "prompt_ids", f"prompt_ids[{run.index}]")
                raise

        return await map_bounded(embed, runs, EMBEDDINGS_AT_ONCE)

    async def _embed(self, run: EmbeddingRun, context: RequestContext) -> Embedding:
        """A failure that may pass is tried once more, as in `generate`."""
        failed: Engine | None = None
        until = self.patience(context)
        while True:
            with self._waiting.place():
                engine = await self._stations.engines.choose(until, avoid=failed)
            try:
                return await self._try_embed(engine, run, context)
            except PostroadError as error:
                if failed is not None or not is_transient(error):
                    raise
                self._log.warning("embed failed", request_id=context.request_id, reason=error.reason)
                until = self.patience(context)
                with self._waiting.place():
                    recovered = await self._engine_recovered(engine, until)
                if not recovered:
                    raise
                failed = engine

    async def _try_embed(self, engine: Engine, run: EmbeddingRun, context: RequestContext) -> Embedding:
        """One try on one engine."""
        run.times.generate_start = time.monotonic_ns()
        engine.in_flight += 1
        try:
            message = await engine.stub.Embed(
                run.request, metadata=context.metadata(), timeout=context.time_remaining()
            )
        except grpc.aio.AioRpcError as error:
            raise self._typed(error, "engine", context) from None
        finally:
            engine.in_flight -= 1
        embedding = wire.read_embedding(message)
        run.times.generate_end, run.times.stations = time.monotonic_ns(), embedding.times
        return embedding

    async def _recovered(self, engine: Engine, until: float) -> bool:
        """Waits until another try makes sense: the detokenizer serves, and so does `engine` or another one."""
        return await self._stations.detokenizer.confirm(until) and await self._engine_recovered(engine, until)

    async def _engine_recovered(self, engine: Engine, until: float) -> bool:
        """Waits until another engine serves, or `engine` itself."""
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

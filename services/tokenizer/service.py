"""The RPC edge of the tokenizer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.errors import InvalidArgument, NotReady, PostroadError, rpc_errors
from services.common.live_requests import LiveRequests
from services.common.request_context import RequestContext
from services.common.tracing import OpenSpan, Tracing
from services.pb.postroad.v1 import debug_pb2, engine_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.chat import Chat, parse_chat
from services.tokenizer.formats import is_reasoning_open
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.model_tokenizer import ModelTokenizer
from services.tokenizer.text_limit import TextLimit
from services.tokenizer.worker_pool import WorkerPool

TINY_REQUEST_BYTES = 2048  # encoded sooner than handed to a thread and back
# `messages[0].role` stands in the request's field `messages_json`.
_JSON_FIELD = re.compile("^(messages|tools|template_kwargs)")

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")


@dataclass(slots=True)
class _Request:
    """One request while it is in the station."""

    method: str
    request_id: str
    span: OpenSpan
    arrival_ns: int  # time.perf_counter_ns
    tokens: int = 0
    outcome: str = "ok"
    elapsed_us: int = 0

    def take_time(self) -> int:
        """Notes the time until now, microseconds."""
        self.elapsed_us = (time.perf_counter_ns() - self.arrival_ns) // 1000
        return self.elapsed_us


class TokenizerService(tokenizer_pb2_grpc.TokenizerServicer):
    """Encode and RenderChat with the tokenizer files that `load` was last called with."""

    def __init__(
        self,
        pool: WorkerPool,
        live: LiveRequests,
        metrics: TokenizerMetrics,
        tracing: Tracing,
        log: FilteringBoundLogger,
        *,
        max_text_mib: int,
    ) -> None:
        self._pool = pool
        self._live = live
        self._metrics = metrics
        self._tracing = tracing
        self._log = log
        self._max_text_mib = max_text_mib
        self._max_model_len = 0
        self._tokenizer: ModelTokenizer | None = None

    async def load(self, files: Mapping[str, bytes]) -> None:
        """Takes the engine's tokenizer files; requests that run keep the tokenizer they began with."""
        self._tokenizer = await asyncio.to_thread(ModelTokenizer.from_files, files)

    def on_model(self, model: engine_pb2.GetModelResponse) -> None:
        """Takes the model's length, which the engine knows later than its files."""
        self._max_model_len = model.max_model_len

    def read_out(self) -> debug_pb2.ReadOutResponse:
        """What the station holds at this moment."""
        return debug_pb2.ReadOutResponse(
            requests={"live_requests": len(self._live), "pending_jobs": self._pool.pending}
        )

    async def Encode(self, request: tokenizer_pb2.EncodeRequest, context: Context) -> tokenizer_pb2.EncodeResponse:
        async with self._request("encode", context) as (current, tokenizer):
            if not request.texts:
                raise InvalidArgument("texts: must have at least one entry", "texts")
            job = partial(_encode, tokenizer, self._limit(tokenizer), request)
            response = await self._run(request.ByteSize(), job)
            current.tokens = sum(len(encoding.ids) for encoding in response.encodings)
            response.elapsed_us = current.take_time()
        return response

    async def RenderChat(
        self, request: tokenizer_pb2.RenderChatRequest, context: Context
    ) -> tokenizer_pb2.RenderChatResponse:
        async with self._request("render_chat", context) as (current, tokenizer):
            job = partial(_render_chat, tokenizer, self._limit(tokenizer), request)
            response = await self._run(request.ByteSize(), job)
            current.tokens = len(response.ids)
            response.elapsed_us = current.take_time()
        return response

    async def _run(self, size: int, job: Callable[[], T]) -> T:
        return job() if size <= TINY_REQUEST_BYTES else await self._pool.run(size, job)

    def _limit(self, tokenizer: ModelTokenizer) -> TextLimit:
        return TextLimit(self._max_text_mib, self._max_model_len, tokenizer.longest_token)

    @asynccontextmanager
    async def _request(self, method: str, context: Context) -> AsyncIterator[tuple[_Request, ModelTokenizer]]:
        """Around a handler's body: errors, the count of live requests and, once the answer is out, the report."""
        arrival_ns = time.perf_counter_ns()
        caller = RequestContext.from_grpc(context)
        span = self._tracing.open(f"tokenizer.{method}", caller.traceparent)
        current = _Request(method, caller.request_id, span, arrival_ns)
        context.add_done_callback(lambda _: self._report(current))  # type: ignore[arg-type]
        async with rpc_errors(context, self._log, caller.request_id):
            try:
                with self._live.enter():
                    if self._tokenizer is None:
                        raise NotReady("the tokenizer files have not arrived from the engine yet")
                    yield current, self._tokenizer
            except PostroadError as error:
                current.outcome = error.reason.lower()
                raise
            except asyncio.CancelledError:
                current.outcome = "cancelled"
                raise
            except Exception:
                current.outcome = "internal"
                raise
            finally:
                current.take_time()

    def _report(self, current: _Request) -> None:
        self._metrics.seconds.labels(current.method).observe(current.elapsed_us / 1e6)
        self._metrics.requests.labels(current.method, current.outcome).inc()
        self._metrics.tokens.inc(current.tokens)
        self._log.info(
            "request",
            request_id=current.request_id,
            method=current.method,
            outcome=current.outcome,
            tokens=current.tokens,
            tokenise_ms=round(current.elapsed_us / 1000, 3),
        )
        failed = current.outcome not in ("ok", "cancelled")
        current.span.end({"postroad.tokens": current.tokens}, current.outcome if failed else None)


# The responses are built by the worker as well: a million ids take tens of milliseconds.


def _encode(
    tokenizer: ModelTokenizer, limit: TextLimit, request: tokenizer_pb2.EncodeRequest
) -> tokenizer_pb2.EncodeResponse:
    add_special_tokens = request.add_special_tokens if request.HasField("add_special_tokens") else True
    for index, text in enumerate(request.texts):
        limit.check(text, f"texts[{index}]")
    response = tokenizer_pb2.EncodeResponse()
    for text in request.texts:  # one list of ids at a time: a list takes nine times what the message does
        response.encodings.add(ids=tokenizer.encode(text, add_special_tokens=add_special_tokens))
    return response


def _render_chat(
    tokenizer: ModelTokenizer, limit: TextLimit, request: tokenizer_pb2.RenderChatRequest
) -> tokenizer_pb2.RenderChatResponse:
    try:
        prompt = tokenizer.render(_chat_of(request))
    except InvalidArgument as error:
        raise InvalidArgument(error.message, _JSON_FIELD.sub(r"\1_json", error.param or "")) from error
    limit.check(prompt, "messages_json")
    # The template wrote every special token that it wants, the beginning-of-sequence token among them.
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    return tokenizer_pb2.RenderChatResponse(
        prompt=prompt,
        ids=ids,
        tool_call_format=tokenizer.formats.tool_calls,
        reasoning_format=tokenizer.formats.reasoning,
        reasoning_open=is_reasoning_open(prompt),
    )


def _chat_of(request: tokenizer_pb2.RenderChatRequest) -> Chat:
    return parse_chat(
        request.messages_json,
        tools_json=request.tools_json if request.HasField("tools_json") else None,
        template_kwargs_json=request.template_kwargs_json if request.HasField("template_kwargs_json") else None,
        add_generation_prompt=request.add_generation_prompt if request.HasField("add_generation_prompt") else True,
    )

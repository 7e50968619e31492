"""Tokenizer, detokenizer and engine as small gRPC servers whose behaviour a test scripts, for faults that the real ones
cannot be made to show on demand. Server, health and error forms are the real ones of services/common."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog

from services.common.errors import rpc_errors
from services.common.request_context import RequestContext
from services.common.servers import StationServer
from services.pb.postroad.v1 import (
    common_pb2,
    debug_pb2,
    detokenizer_pb2,
    detokenizer_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

Script = Callable[[detokenizer_pb2.GenerateTextRequest, RequestContext], AsyncIterator[detokenizer_pb2.TextDelta]]
Servicer = grpc.aio.ServicerContext[Any, Any]
LOG = structlog.testing.CapturingLogger()


def quiet_log() -> Any:
    """A logger that keeps its lines to itself."""
    return structlog.wrap_logger(LOG, processors=[structlog.testing.LogCapture()])


def first(text: str = "", **start: int) -> detokenizer_pb2.TextDelta:
    """The first delta."""
    return detokenizer_pb2.TextDelta(text=text, num_tokens=1, start=engine_pb2.StreamStart(**start))


def delta(text: str) -> detokenizer_pb2.TextDelta:
    """A delta with text alone."""
    return detokenizer_pb2.TextDelta(text=text, num_tokens=1)


def end(
    text: str = "", reason: Any = common_pb2.FINISH_REASON_STOP, completion_tokens: int = 2, **timings: int
) -> detokenizer_pb2.TextDelta:
    """The last delta."""
    usage = common_pb2.Usage(prompt_tokens=5, completion_tokens=completion_tokens, cached_tokens=3)
    times = common_pb2.Timings(**timings)
    return detokenizer_pb2.TextDelta(
        text=text, end=detokenizer_pb2.TextEnd(finish_reason=reason, usage=usage, timings=times)
    )


async def hello(
    request: detokenizer_pb2.GenerateTextRequest, context: RequestContext
) -> AsyncIterator[detokenizer_pb2.TextDelta]:
    """What the detokenizer does unless a test says otherwise."""
    yield first("Hel")
    yield delta("lo")
    last = end(" world")
    if request.request.HasField("logprobs"):
        last.end.cumulative_logprob = -1.5
    yield last


async def silent(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
    """A script. Queued or in prefill: nothing comes."""
    await asyncio.Event().wait()
    yield delta("never")


async def flood(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
    """A script. More comes without an end than a client that stops reading has room for."""
    yield first("x")
    while True:
        yield delta("y" * 100_000)


class FakeTokenizer(tokenizer_pb2_grpc.TokenizerServicer):
    """One id per character. `answer` may be replaced; it gets the text and its return value is the ids."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.contexts: list[RequestContext] = []
        self.running = 0
        self.before: Callable[[], Any] | None = None  # awaited at the start of each call
        self.formats: dict[str, Any] = {}  # of the model, for RenderChatResponse

    async def _call(self, request: Any, context: Servicer) -> None:
        self.requests.append(request)
        given = RequestContext.from_grpc(context)
        self.contexts.append(given)
        self.running += 1
        try:
            async with rpc_errors(context, quiet_log(), given.request_id):
                if self.before is not None:
                    await self.before()
        finally:
            self.running -= 1

    async def Encode(self, request: tokenizer_pb2.EncodeRequest, context: Servicer) -> tokenizer_pb2.EncodeResponse:
        await self._call(request, context)
        encodings = [tokenizer_pb2.TokenIds(ids=[ord(char) for char in text]) for text in request.texts]
        return tokenizer_pb2.EncodeResponse(encodings=encodings, elapsed_us=1)

    async def RenderChat(
        self, request: tokenizer_pb2.RenderChatRequest, context: Servicer
    ) -> tokenizer_pb2.RenderChatResponse:
        await self._call(request, context)
        prompt = "".join(f"<{m['role']}>{m.get('content')}" for m in json.loads(request.messages_json))
        ids = [ord(char) for char in prompt]
        return tokenizer_pb2.RenderChatResponse(prompt=prompt, ids=ids, elapsed_us=1, **self.formats)


class FakeDetokenizer(detokenizer_pb2_grpc.DetokenizerServicer):
    """Generates what `script` yields."""

    def __init__(self) -> None:
        self.script: Script = hello
        self.requests: list[detokenizer_pb2.GenerateTextRequest] = []
        self.decoded: list[detokenizer_pb2.DecodeRequest] = []
        self.before_decode: Callable[[], Any] | None = None  # awaited at the start of each call
        self.contexts: list[RequestContext] = []
        self.running = 0
        self.entered = asyncio.Event()  # a call began
        self.left = asyncio.Event()  # no call runs any more

    async def Decode(self, request: detokenizer_pb2.DecodeRequest, context: Servicer) -> detokenizer_pb2.DecodeResponse:
        self.decoded.append(request)
        async with rpc_errors(context, quiet_log(), "decode"):
            if self.before_decode is not None:
                await self.before_decode()
        return detokenizer_pb2.DecodeResponse(text="".join(map(chr, request.ids)))

    async def Generate(
        self, request: detokenizer_pb2.GenerateTextRequest, context: Servicer
    ) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        self.requests.append(request)
        given = RequestContext.from_grpc(context)
        self.contexts.append(given)
        self.running += 1
        self.left.clear()
        self.entered.set()
        try:
            async with rpc_errors(context, quiet_log(), given.request_id):
                async for message in self.script(request, given):
                    yield message
        finally:
            self.running -= 1
            if self.running == 0:
                self.left.set()


def embedding_of(request: engine_pb2.EmbedRequest) -> list[float]:
    """What FakeEngine makes of a prompt, exact in float32."""
    return [float(len(request.prompt_ids)), float(request.prompt_ids[0]), request.prompt_ids[-1] / 2**20]


class FakeEngine(engine_pb2_grpc.EngineServicer):
    """Knows its model; what it generates is the detokenizer's script. It embeds by `embedding_of`."""

    def __init__(self) -> None:
        self.model = engine_pb2.GetModelResponse(
            model="smol", max_model_len=2048, vocab_size=49152, created=1700000000, embedding_size=3
        )
        self.embedded: list[engine_pb2.EmbedRequest] = []
        self.contexts: list[RequestContext] = []
        self.before_embed: Callable[[engine_pb2.EmbedRequest], Any] | None = None  # awaited at the start of each call
        self.running = self.most_running = 0

    async def GetModel(self, request: engine_pb2.GetModelRequest, context: Servicer) -> engine_pb2.GetModelResponse:
        return self.model

    async def Embed(self, request: engine_pb2.EmbedRequest, context: Servicer) -> engine_pb2.EmbedResponse:
        self.embedded.append(request)
        given = RequestContext.from_grpc(context)
        self.contexts.append(given)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            async with rpc_errors(context, quiet_log(), given.request_id):
                if self.before_embed is not None:
                    await self.before_embed(request)
        finally:
            self.running -= 1
        usage = common_pb2.Usage(prompt_tokens=len(request.prompt_ids), cached_tokens=1)
        timings = common_pb2.Timings(schedule_wait_us=10, prefill_us=20)
        return engine_pb2.EmbedResponse(embedding=embedding_of(request), usage=usage, timings=timings)


class Host:
    """A station's server that can be killed and started again on its port."""

    def __init__(self, service: str, register: Callable[[grpc.aio.Server], None]) -> None:
        self._service = service
        self._register = register
        self._server: StationServer | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, serving: bool = True) -> None:
        address = self.address
        self._server = StationServer(self._service, address, debug_pb2.ReadOutResponse, quiet_log())
        self.port = self._server.port
        self._register(self._server.server)
        await self._server.start()
        await self._server.set_serving(serving)

    async def set_serving(self, serving: bool) -> None:
        assert self._server is not None
        await self._server.set_serving(serving)

    async def kill(self) -> None:
        """All connections break at once."""
        if self._server is not None:
            await self._server.server.stop(0)
            self._server = None


class FakeStations:
    """The stations behind one gateway."""

    def __init__(self, engines: int = 1) -> None:
        self.tokenizer, self.detokenizer = FakeTokenizer(), FakeDetokenizer()
        self.engines = [FakeEngine() for _ in range(engines)]
        self.tokenizer_host = Host("postroad.v1.Tokenizer", self._register_tokenizer)
        self.detokenizer_host = Host("postroad.v1.Detokenizer", self._register_detokenizer)
        self.engine_hosts = [Host("postroad.v1.Engine", self._register_engine(engine)) for engine in self.engines]

    def _register_tokenizer(self, server: grpc.aio.Server) -> None:
        tokenizer_pb2_grpc.add_TokenizerServicer_to_server(self.tokenizer, server)

    def _register_detokenizer(self, server: grpc.aio.Server) -> None:
        detokenizer_pb2_grpc.add_DetokenizerServicer_to_server(self.detokenizer, server)

    @staticmethod
    def _register_engine(engine: FakeEngine) -> Callable[[grpc.aio.Server], None]:
        return lambda server: engine_pb2_grpc.add_EngineServicer_to_server(engine, server)

    @property
    def hosts(self) -> list[Host]:
        return [self.tokenizer_host, self.detokenizer_host, *self.engine_hosts]

    async def start(self) -> None:
        for host in self.hosts:
            await host.start()

    async def stop(self) -> None:
        for host in self.hosts:
            await host.kill()

"""A real station server whose one RPC, Tokenizer.Encode, runs what a test gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import LogCapture

from services.common.channels import open_channel
from services.common.servers import StationServer
from services.pb.postroad.v1 import debug_pb2, debug_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc

SERVICE = "postroad.v1.Tokenizer"
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[tokenizer_pb2.EncodeRequest, Context], Awaitable[tokenizer_pb2.EncodeResponse]]


class _Servicer(tokenizer_pb2_grpc.TokenizerServicer):
    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def Encode(self, request: tokenizer_pb2.EncodeRequest, context: Context) -> tokenizer_pb2.EncodeResponse:
        return await self._handler(request, context)


async def answer(request: tokenizer_pb2.EncodeRequest, context: Context) -> tokenizer_pb2.EncodeResponse:
    """A handler that has nothing to say."""
    return tokenizer_pb2.EncodeResponse()


@dataclass
class Served:
    """The server, and a client's view of it."""

    server: StationServer
    channel: grpc.aio.Channel
    log: Any
    logs: list[Any]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def encode(self, *texts: str, **call: Any) -> tokenizer_pb2.EncodeResponse:
        stub = tokenizer_pb2_grpc.TokenizerStub(self.channel)
        response: tokenizer_pb2.EncodeResponse = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=texts), **call)
        return response

    async def health(self, service: str = SERVICE) -> str:
        response = await health_pb2_grpc.HealthStub(self.channel).Check(health_pb2.HealthCheckRequest(service=service))
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    def events(self) -> list[str]:
        """What was logged so far."""
        return [entry["event"] for entry in self.logs]


async def who_answers(channel: grpc.aio.Channel) -> str:
    """The `name` of the server that the channel's next call went to."""
    response = await debug_pb2_grpc.DebugStub(channel).ReadOut(debug_pb2.ReadOutRequest())
    return str(next(iter(response.counters)))


def captured_log() -> tuple[Any, list[Any]]:
    """A logger and the entries that it has made so far, tracebacks as text."""
    capture = LogCapture()
    processors: list[Any] = [structlog.stdlib.add_log_level, structlog.processors.format_exc_info, capture]
    return structlog.wrap_logger(structlog.ReturnLogger(), processors=processors), capture.entries


@asynccontextmanager
async def served(
    handler: Handler = answer, *, name: str = "a", address: str = "127.0.0.1:0", serving: bool = True
) -> AsyncIterator[Served]:
    """A started server; `name` is the one counter of its read-out."""
    log, logs = captured_log()
    server = StationServer(SERVICE, address, lambda: debug_pb2.ReadOutResponse(counters={name: 1}), log)
    tokenizer_pb2_grpc.add_TokenizerServicer_to_server(_Servicer(handler), server.server)
    await server.start()
    await server.set_serving(serving)
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        try:
            yield Served(server, channel, log, logs)
        finally:
            await server.server.stop(None)

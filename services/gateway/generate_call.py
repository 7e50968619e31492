"""Calls of Detokenizer.Generate, open before their request is known."""

from __future__ import annotations

from asyncio import InvalidStateError
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace

import grpc
from google.protobuf.message import Message

from services.common.open_call import send
from services.common.request_context import RequestContext
from services.gateway.replicas import Engine
from services.pb.postroad.v1 import detokenizer_pb2

_Call = grpc.aio.StreamStreamCall[Message, detokenizer_pb2.TextDelta]


class GenerateCall:
    """One try of a request on one engine, which counts it until `close`."""

    def __init__(self, engine: Engine, call: _Call) -> None:
        self.engine = engine
        self._call = call
        self._closed = False
        engine.in_flight += 1

    async def send(self, request: detokenizer_pb2.GenerateTextRequest) -> None:
        """Sends the one message. Where the call has failed, `read` says why. Raises AioRpcError."""
        await send(self._call, request)
        with suppress(InvalidStateError):
            await self._call.done_writing()

    def read(self) -> Awaitable[object]:
        """The next TextDelta; something else after the last one. Raises AioRpcError."""
        return self._call.read()

    def close(self) -> None:
        """Cancels the call if it has not ended. Idempotent."""
        if not self._closed:
            self._closed = True
            self.engine.in_flight -= 1
            self._call.cancel()


class GenerateCalls:
    """Opens the calls of a gateway."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        # The stub's client for a single message opens a call with it; that for a stream of them opens it at once. On
        # the wire they are the same.
        self._open = channel.stream_stream(
            "/postroad.v1.Detokenizer/Generate",
            request_serializer=detokenizer_pb2.GenerateTextRequest.SerializeToString,
            response_deserializer=detokenizer_pb2.TextDelta.FromString,
        )

    def open(self, engine: Engine, context: RequestContext) -> GenerateCall:
        """A call to run a request on `engine`, with the context's metadata and deadline. Its owner closes it."""
        metadata = replace(context, engine=engine.address).metadata()
        return GenerateCall(engine, self._open(metadata=metadata, timeout=context.time_remaining()))

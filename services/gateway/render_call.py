"""Calls of Tokenizer.RenderChat, open before their request is known."""

from __future__ import annotations

from asyncio import InvalidStateError
from contextlib import suppress

import grpc
from google.protobuf.message import Message

from services.common.request_context import RequestContext
from services.pb.postroad.v1 import tokenizer_pb2

_Call = grpc.aio.StreamUnaryCall[Message, tokenizer_pb2.RenderChatResponse]


class RenderCall:
    """One try of rendering a chat. Its owner closes it."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    async def send(self, request: tokenizer_pb2.RenderChatRequest) -> None:
        """Sends the one message. Where the call has failed, `response` says why."""
        with suppress(InvalidStateError):
            await self._call.write(request)

    async def response(self) -> tokenizer_pb2.RenderChatResponse:
        """The tokenizer's answer. Raises AioRpcError."""
        with suppress(InvalidStateError):
            await self._call.done_writing()
        return await self._call

    def close(self) -> None:
        """Cancels the call if it has not ended. Idempotent."""
        self._call.cancel()


class RenderCalls:
    """Opens the calls of a gateway."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        # As with the calls of Generate: the stub's client for a single message opens a call with it.
        self._open = channel.stream_unary(
            "/postroad.v1.Tokenizer/RenderChat",
            request_serializer=tokenizer_pb2.RenderChatRequest.SerializeToString,
            response_deserializer=tokenizer_pb2.RenderChatResponse.FromString,
        )

    def open(self, context: RequestContext) -> RenderCall:
        """A call with the context's metadata and deadline."""
        return RenderCall(self._open(metadata=context.metadata(), timeout=context.time_remaining()))

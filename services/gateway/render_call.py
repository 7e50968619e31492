"""Calls of Tokenizer.RenderChat, open before their request is known."""

from __future__ import annotations

import grpc

from services.common.open_call import OpenCall
from services.common.request_context import RequestContext
from services.pb.postroad.v1 import tokenizer_pb2

RenderCall = OpenCall[tokenizer_pb2.RenderChatRequest, tokenizer_pb2.RenderChatResponse]


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
        return OpenCall(self._open(metadata=context.metadata(), timeout=context.time_remaining()))

"""Requests whose bytes are no message of their method: refused in plain words.

gRPC would answer UNKNOWN with the name of a Python class, and log a traceback that any caller could cause.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from services.common.errors import InvalidArgument, abort

# In quotes: a generic class for the type checker alone.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


def undecodable() -> InvalidArgument:
    """The error for such a request."""
    return InvalidArgument("the request's bytes are not the message that the method takes")


class RefuseUndecodable(grpc.aio.ServerInterceptor):
    """Ends calls of one undecodable request with INVALID_ARGUMENT. Concerns handlers that are coroutine functions."""

    def __init__(self) -> None:
        self._checked: dict[str, Handler] = {}  # by method; only of methods that exist

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method = handler_call_details.method
        if (known := self._checked.get(method)) is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:  # an unknown method; a stream, decoded as it is read
            return handler
        checked = self._checked[method] = _with_check(handler)
        return checked


def _with_check(handler: Handler) -> Handler:
    make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    handle = handler.unary_stream if handler.response_streaming else handler.unary_unary
    decode = handler.request_deserializer
    if decode is None or not inspect.iscoroutinefunction(handle):
        return handler

    def decode_or_none(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return None

    async def checked(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request is None:
            await abort(context, undecodable())
        return await handle(request, context)

    return make(checked, request_deserializer=decode_or_none, response_serializer=handler.response_serializer)

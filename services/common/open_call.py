"""A unary call that is open before its request is known: on the wire a call whose one message comes a little later."""

from __future__ import annotations

import asyncio
from asyncio import InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

import grpc

Request = TypeVar("Request")
Response = TypeVar("Response")


class OpenCall(Generic[Request, Response]):
    """Its owner closes it."""

    def __init__(self, call: grpc.aio.StreamUnaryCall[Any, Response]) -> None:
        self._call = call

    async def send(self, request: Request) -> None:
        """Sends the one message. Where the call has failed, `response` says why. Raises AioRpcError."""
        await send(self._call, request)

    async def response(self) -> Response:
        """The station's answer. Raises AioRpcError."""
        with suppress(InvalidStateError):
            await self._call.done_writing()
        return await self._call

    def close(self) -> None:
        """Cancels the call if it has not ended, and what the station does for it. Idempotent."""
        self._call.cancel()


async def send(call: grpc.aio.StreamUnaryCall[Any, Any] | grpc.aio.StreamStreamCall[Any, Any], request: object) -> None:
    """Sends a message. Where the call has ended, reading from it says why.

    Raises AioRpcError, UNAVAILABLE, where the call broke and nobody can say why.
    """
    try:
        await call.write(request)
    except InvalidStateError:
        return
    except grpc.aio.AioRpcError as error:
        # While a call's end is on its way from gRPC's threads, gRPC refuses the message and makes a status of its own,
        # INTERNAL, as if the fault were ours. The true one takes its place, as a rule with the loop's next turn.
        await asyncio.sleep(0)
        if await call.code() is grpc.StatusCode.INTERNAL:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, details="the call broke", debug_error_string=error.debug_error_string()
            ) from error

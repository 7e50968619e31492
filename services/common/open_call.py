"""A unary call that is open before its request is known: on the wire a call whose one message comes a little later."""

from __future__ import annotations

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
        """Sends the one message. Where the call has failed, `response` says why."""
        with suppress(InvalidStateError):
            await self._call.write(request)

    async def response(self) -> Response:
        """The station's answer. Raises AioRpcError."""
        with suppress(InvalidStateError):
            await self._call.done_writing()
        return await self._call

    def close(self) -> None:
        """Cancels the call if it has not ended, and what the station does for it. Idempotent."""
        self._call.cancel()

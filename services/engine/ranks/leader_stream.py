"""A rank's stream to rank 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from services.common.channels import open_channel
from services.common.errors import from_rpc
from services.pb.postroad.v1 import ranks_pb2, ranks_pb2_grpc


class LeaderStream:
    """One stream at a time. Used from one event loop."""

    def __init__(self, address: str) -> None:
        """`address` is host:port of rank 0. To be made on a running event loop."""
        self._channel = open_channel(address, own_connection=True)
        self._outbox: asyncio.Queue[ranks_pb2.FromRank] | None = None  # while there is a stream

    async def follow(self, join: ranks_pb2.JoinGroup, take: Callable[[ranks_pb2.ToRank], None]) -> None:
        """Joins and hands each message of rank 0 to `take`, until rank 0 ends the stream. Raises PostroadError."""
        outbox: asyncio.Queue[ranks_pb2.FromRank] = asyncio.Queue()
        outbox.put_nowait(ranks_pb2.FromRank(join=join))
        call = ranks_pb2_grpc.RanksStub(self._channel).Follow()
        writer = asyncio.create_task(_write_all(call, outbox))
        self._outbox = outbox
        try:
            async for message in call:
                take(message)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        finally:
            self._outbox = None
            writer.cancel()
            call.cancel()

    def send(self, message: ranks_pb2.FromRank) -> None:
        """Lost when there is no stream: rank 0 has forgotten this rank then."""
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    async def close(self) -> None:
        await self._channel.close()


async def _write_all(call: Any, outbox: asyncio.Queue[ranks_pb2.FromRank]) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the call is over; who reads it learns why
        while True:
            await call.write(await outbox.get())

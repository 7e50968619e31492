"""ranks.proto at rank 0: one stream per rank."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.errors import InvalidArgument, rpc_errors
from services.engine.ranks.addresses import host_of_peer
from services.engine.ranks.leader import Member, RankLeader
from services.engine.ranks.wire import identity_from
from services.pb.postroad.v1 import ranks_pb2, ranks_pb2_grpc

SERVICE = "postroad.v1.Ranks"
Context = grpc.aio.ServicerContext[Any, Any]


class RanksServicer(ranks_pb2_grpc.RanksServicer):
    def __init__(self, leader: RankLeader, log: FilteringBoundLogger) -> None:
        self._leader = leader
        self._log = log

    async def Follow(self, requests: AsyncIterator[ranks_pb2.FromRank], context: Context) -> None:
        async with rpc_errors(context, self._log, ""):
            first = await anext(requests, ranks_pb2.FromRank())
            if not first.HasField("join"):
                raise InvalidArgument("the first message must be join", "join")
            member = self._leader.join(first.join, identity_from(first.join.identity), host_of_peer(context.peer()))
            reader = asyncio.create_task(self._read(requests, member))
            try:
                while (message := await member.outbox.get()) is not None:
                    await context.write(message)
                if member.end is not None:
                    raise member.end
            finally:
                reader.cancel()
                self._leader.leave(member)

    async def _read(self, requests: AsyncIterator[ranks_pb2.FromRank], member: Member) -> None:
        try:
            async for message in requests:
                self._leader.on_message(member, message)
        finally:
            member.outbox.put_nowait(None)

"""Connections to engines, one per address, opened when needed and dropped when the engine is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from services.common.channels import open_channel
from services.common.engine_address import grpc_target
from services.common.errors import QueueFull
from services.pb.postroad.v1 import engine_pb2, engine_pb2_grpc

MAX_LINKS = 64  # engines at a time: callers name them


@dataclass(eq=False, slots=True)
class EngineLink:
    """The channel to one engine. `users` counts the requests that hold it."""

    address: str
    channel: grpc.aio.Channel
    stub: engine_pb2_grpc.EngineStub = field(init=False)
    # GenerateFramed for a call that opens before its message is known: on the wire the same as the stub's.
    generate_framed: grpc.aio.StreamUnaryMultiCallable[
        engine_pb2.GenerateFramedRequest, engine_pb2.GenerateFramedResponse
    ] = field(init=False)
    users: int = 0

    def __post_init__(self) -> None:
        self.stub = engine_pb2_grpc.EngineStub(self.channel)
        self.generate_framed = self.channel.stream_unary(
            "/postroad.v1.Engine/GenerateFramed",
            request_serializer=engine_pb2.GenerateFramedRequest.SerializeToString,
            response_deserializer=engine_pb2.GenerateFramedResponse.FromString,
        )


class EngineLinks:
    """All links by address. A link that is neither used nor connected is closed."""

    def __init__(self) -> None:
        self._links: dict[str, EngineLink] = {}
        self._watchers: dict[EngineLink, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._links)

    @contextmanager
    def use(self, address: str) -> Iterator[EngineLink]:
        """Keeps the link to host:port `address` open, whatever becomes of the connection.

        Raises QueueFull if the link would be a new one and `MAX_LINKS` others are in use.
        """
        link = self._links.get(address) or self._open(address)
        link.users += 1
        try:
            yield link
        finally:
            link.users -= 1
            self._close_if_gone(link)

    async def close(self) -> None:
        """Closes all links; their calls end."""
        for link in list(self._links.values()):
            self._close(link)
        await asyncio.gather(*self._closing)

    def _open(self, address: str) -> EngineLink:
        if len(self._links) >= MAX_LINKS:
            self._close_unused()
        # pick_first, one connection: a frame session and the calls that name it must meet at the same engine.
        # Its own: an engine that is back is reached at once, whatever the station's other channel to it waits for.
        channel = open_channel(grpc_target(address), "pick_first", own_connection=True)
        link = self._links[address] = EngineLink(address, channel)
        self._watchers[link] = asyncio.create_task(self._watch(link))
        return link

    async def _watch(self, link: EngineLink) -> None:
        while True:
            await link.channel.wait_for_state_change(link.channel.get_state())
            self._close_if_gone(link)

    def _close_unused(self) -> None:
        """Makes room for one link by closing the oldest that no request holds."""
        unused = next((link for link in self._links.values() if link.users == 0), None)
        if unused is None:
            raise QueueFull(f"requests run on {MAX_LINKS} engines already; try again later")
        self._close(unused)

    def _close_if_gone(self, link: EngineLink) -> None:
        if link.users == 0 and link.channel.get_state() != grpc.ChannelConnectivity.READY:
            self._close(link)

    def _close(self, link: EngineLink) -> None:
        watcher = self._watchers.pop(link, None)
        if watcher is None:
            return  # closed already
        watcher.cancel()
        del self._links[link.address]
        closing = asyncio.create_task(link.channel.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

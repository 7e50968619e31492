"""A call whose message comes late, when the station may be gone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from services.common.open_call import OpenCall, send

METHOD = "/test.Station/Answer"


@asynccontextmanager
async def open_on_a_lost_station(kind: str) -> AsyncIterator[Any]:
    """An open call of `kind` ("stream_unary" or "stream_stream") whose station stops before the loop's next turn.

    gRPC's threads know it then, and the loop does not.
    """

    def wait(requests: Iterator[bytes], context: object) -> Any:
        for _ in requests:
            pass
        return b"" if kind == "stream_unary" else iter(())

    server = grpc.server(futures.ThreadPoolExecutor(1))
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(wait)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Station", {"Answer": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = getattr(channel, kind)(METHOD)()
        await call.wait_for_connection()
        lose(server, channel)
        yield call


def lose(server: grpc.Server, channel: grpc.aio.Channel) -> None:
    """Stops the server and waits until the channel knows, in one turn of the loop."""
    server.stop(None).wait()
    while channel.get_state() is grpc.ChannelConnectivity.READY:
        time.sleep(0.001)


async def ask_late(call: OpenCall[bytes, bytes]) -> None:
    await call.send(b"late")
    await call.response()


async def read_late(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
    await send(call, b"late")
    await call.read()


async def test_a_message_to_a_lost_station_fails_as_the_connection_did() -> None:
    """gRPC says INTERNAL for it, which would be a fault of ours: the request would not be tried again."""
    async with open_on_a_lost_station("stream_unary") as call:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await ask_late(OpenCall(call))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_message_on_a_lost_stream_fails_as_the_connection_did() -> None:
    async with open_on_a_lost_station("stream_stream") as call:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await read_late(call)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE

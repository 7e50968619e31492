"""Message sizes, and which of several servers a call goes to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from services.common.channels import MAX_MESSAGE_BYTES, open_channel
from services.common.errors import TooLarge, Unavailable, from_rpc
from services.pb.postroad.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.common.serving import SERVICE, Served, served, who_answers
from tests.support.polling import until
from tests.support.ports import free_ports


async def echo(request: tokenizer_pb2.EncodeRequest, context: Any) -> tokenizer_pb2.EncodeResponse:
    """As many ids, one byte each, as the text has letters."""
    ids = tokenizer_pb2.TokenIds(ids=[1] * len(request.texts[0]))
    return tokenizer_pb2.EncodeResponse(encodings=[ids])


async def test_fieldbug_18_messages_above_grpc_s_own_limit_pass_both_ways() -> None:
    async with served(echo) as server:
        response = await server.encode("x" * (5 << 20))
    assert len(response.encodings[0].ids) == 5 << 20


async def test_fieldbug_18_a_request_over_the_limit_is_too_large() -> None:
    async with served() as server:
        await server.encode("x" * (MAX_MESSAGE_BYTES - 100))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await server.encode("x" * MAX_MESSAGE_BYTES)
        assert type(from_rpc(raised.value)) is TooLarge
        await server.encode("the channel goes on")


async def test_fieldbug_18_the_server_refuses_what_another_client_lets_pass() -> None:
    async with served() as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["x" * MAX_MESSAGE_BYTES]))
    assert type(from_rpc(raised.value)) is TooLarge


def both(first: Served, second: Served) -> str:
    """One target of two addresses, as a name with two records is."""
    return f"ipv4:{first.address},{second.address}"


async def answering(channel: grpc.aio.Channel, calls: int = 10) -> Counter[str]:
    return Counter([await who_answers(channel) for _ in range(calls)])


async def test_pick_first_stays_with_one_server() -> None:
    async with served(name="a") as first, served(name="b") as second, open_channel(both(first, second)) as channel:
        assert await answering(channel) in ({"a": 10}, {"b": 10})


async def test_round_robin_uses_both_servers_in_turn() -> None:
    async with (
        served(name="a") as first,
        served(name="b") as second,
        open_channel(both(first, second), "round_robin") as channel,
    ):
        await until(lambda: _uses(channel, "a", "b"))
        assert await answering(channel) == {"a": 5, "b": 5}


async def test_round_robin_goes_on_without_a_server_that_died() -> None:
    async with (
        served(name="a") as first,
        served(name="b") as second,
        open_channel(both(first, second), "round_robin") as channel,
    ):
        await until(lambda: _uses(channel, "a", "b"))
        await first.server.server.stop(None)
        await until(lambda: _uses(channel, "b"))
        assert await answering(channel) == {"b": 10}


async def test_a_server_that_does_not_serve_gets_no_calls() -> None:
    async with (
        served(name="a") as first,
        served(name="b", serving=False) as second,
        open_channel(both(first, second), "round_robin", SERVICE) as channel,
    ):
        assert await answering(channel) == {"a": 10}
        await second.server.set_serving(True)
        await until(lambda: _uses(channel, "a", "b"))
        await first.server.set_serving(False)
        await until(lambda: _uses(channel, "b"))
        assert await answering(channel) == {"b": 10}


async def test_fieldbug_28_the_channel_is_ready_exactly_when_a_server_serves() -> None:
    async with served(serving=False) as server, open_channel(server.address, "round_robin", SERVICE) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await who_answers(channel)
        assert type(from_rpc(raised.value)) is Unavailable
        assert channel.get_state() != grpc.ChannelConnectivity.READY
        await server.server.set_serving(True)
        await until(lambda: channel.get_state() == grpc.ChannelConnectivity.READY)
        assert await who_answers(channel) == "a"
        await server.server.set_serving(False)
        await until(lambda: channel.get_state() != grpc.ChannelConnectivity.READY)


async def test_a_channel_comes_back_with_its_server() -> None:
    async with served(name="before") as server:
        address = server.address
        channel = open_channel(address)
        assert await who_answers(channel) == "before"
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await who_answers(channel)
        async with served(name="after", address=address):
            await until(lambda: _uses(channel, "after"))


async def _uses(channel: grpc.aio.Channel, *names: str) -> bool:
    """Whether the next calls go to exactly these servers and none fails."""
    try:
        return set(await answering(channel, 2 * len(names))) == set(names)
    except grpc.aio.AioRpcError:
        return False


@asynccontextmanager
async def slow_to_accept(address: str, seconds: float) -> AsyncIterator[str]:
    """An address whose connections reach the server at `address` only after some seconds."""

    async def forward(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        server, to_server = await asyncio.open_connection(*address.split(":"))
        await asyncio.gather(_copy(client, to_server), _copy(server, to_client))

    listener = await asyncio.start_server(forward, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
    sink.close()


async def test_a_peer_that_is_slow_to_accept_is_waited_for() -> None:
    """The time to connect is an option of its own, and not the pause between two attempts."""
    async with (
        served(name="slow") as server,
        slow_to_accept(server.address, seconds=2) as address,
        open_channel(address) as channel,
    ):
        assert await who_answers(channel) == "slow"


async def test_a_channel_of_its_own_does_not_wait_for_another_one_s_back_off() -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    async with open_channel(address) as backing_off:
        with pytest.raises(grpc.aio.AioRpcError):
            await who_answers(backing_off)
        async with served(address=address), open_channel(address, own_connection=True) as own:
            assert await who_answers(own) == "a"

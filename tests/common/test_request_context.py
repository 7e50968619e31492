"""Ids, traces and deadlines on their way from station to station."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from services.common.channels import open_channel
from services.common.errors import DeadlineExceeded, from_rpc
from services.common.request_context import RequestContext, accept_request_id, accept_traceparent
from services.pb.postroad.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.common.serving import Handler, served

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("given", ["a", "req-1", "A.b_c:d-9", "x" * 128])
def test_usable_ids_are_kept(given: str) -> None:
    assert accept_request_id(given) == given


@pytest.mark.parametrize("given", [None, "", "x" * 129, "a b", "a\n", "é", "١", 'a"b', "a/b"])
def test_other_ids_are_replaced_by_new_ones(given: str | None) -> None:
    made = {accept_request_id(given) for _ in range(100)}
    assert len(made) == 100
    assert given not in made
    assert all(accept_request_id(one) == one for one in made)


def test_a_well_formed_traceparent_is_kept() -> None:
    assert accept_traceparent(TRACEPARENT) == TRACEPARENT


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "00",
        TRACEPARENT.upper(),
        TRACEPARENT + "\n",
        TRACEPARENT + "-0",
        TRACEPARENT.replace("-", "_"),
        f"ff{TRACEPARENT[2:]}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
    ],
)
def test_any_other_traceparent_is_dropped(given: str | None) -> None:
    assert accept_traceparent(given) is None


def reading(into: list[RequestContext]) -> Handler:
    """A handler that notes the context of each call."""

    async def handler(request: Any, context: Any) -> tokenizer_pb2.EncodeResponse:
        into.append(RequestContext.from_grpc(context))
        return tokenizer_pb2.EncodeResponse()

    return handler


@pytest.mark.parametrize(
    "sent",
    [
        RequestContext("req-1"),
        RequestContext("req-2", TRACEPARENT),
        RequestContext("req-3", TRACEPARENT, engine="engine-1:50052"),
    ],
)
async def test_a_context_arrives_as_it_was_sent(sent: RequestContext) -> None:
    seen: list[RequestContext] = []
    async with served(reading(seen)) as server:
        await server.encode(metadata=sent.metadata(), timeout=sent.time_remaining())
    assert seen == [sent]
    assert seen[0].time_remaining() is None


async def test_a_call_without_usable_metadata_gets_an_id_and_no_trace() -> None:
    seen: list[RequestContext] = []
    async with served(reading(seen)) as server:
        await server.encode()
        await server.encode(metadata=(("x-request-id", "two words"), ("traceparent", "nonsense")))
    assert len({context.request_id for context in seen}) == 2
    for context in seen:
        assert (accept_request_id(context.request_id), context.traceparent) == (context.request_id, None)


async def test_the_time_that_remains_is_passed_on() -> None:
    first: list[RequestContext] = []
    second: list[RequestContext] = []
    async with served(reading(second)) as next_station:

        async def passing_on(request: Any, context: Any) -> Any:
            caller = RequestContext.from_grpc(context)
            first.append(caller)
            async with open_channel(next_station.address) as channel:
                stub = tokenizer_pb2_grpc.TokenizerStub(channel)
                return await stub.Encode(request, metadata=caller.metadata(), timeout=caller.time_remaining())

        async with served(passing_on) as station:
            before = time.monotonic()
            await station.encode(metadata=RequestContext("req-1", TRACEPARENT).metadata(), timeout=10)
            after = time.monotonic()
    (near,), (far,) = first, second
    assert (far.request_id, far.traceparent) == ("req-1", TRACEPARENT)
    assert near.deadline is not None
    assert far.deadline is not None
    for deadline in (near.deadline, far.deadline):  # the same moment at both; gRPC rounds up what is sent, by 1 %
        assert before + 9.9 < deadline < after + 10.5
    remaining = far.time_remaining()
    assert remaining is not None
    assert remaining <= far.deadline - after


async def test_a_deadline_that_has_passed_ends_the_next_call_at_once() -> None:
    late = RequestContext("req-1", deadline=time.monotonic() - 5)
    assert late.time_remaining() == 0

    async def never(request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async with served(never) as server:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await server.encode(timeout=late.time_remaining())
    assert type(from_rpc(raised.value)) is DeadlineExceeded

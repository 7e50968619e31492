"""Bytes that are no message of the method they were sent to."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from services.common.errors import InvalidArgument, from_rpc
from services.pb.postroad.v1 import engine_pb2
from tests.common.serving import served
from tests.engine.running_engine import running_engine

JUNK = b"\xff\xff\xff"


@pytest.mark.parametrize("method", ["/postroad.v1.Tokenizer/Encode", "/grpc.health.v1.Health/Check"])
async def test_an_undecodable_request_is_refused_and_the_next_one_served(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as server:
        call: Any = server.channel.unary_unary(method)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(JUNK)
            error = from_rpc(raised.value)
            assert type(error) is InvalidArgument
            assert "bytes" in error.message
            assert await call(b"") is not None
    assert caplog.records == []


async def test_an_undecodable_request_for_a_stream_is_refused() -> None:
    async with running_engine() as engine:
        generate: Any = engine.channel.unary_stream("/postroad.v1.Engine/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await generate(JUNK).read()
        assert type(from_rpc(raised.value)) is InvalidArgument
        model = await engine.stub.GetModel(engine_pb2.GetModelRequest())
        assert model.max_model_len > 0


async def test_an_unknown_method_stays_unknown() -> None:
    async with served() as server:
        call: Any = server.channel.unary_unary("/postroad.v1.Tokenizer/Detokenise")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(JUNK)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED

"""Disconnects: whatever phase a request is in, its client's leaving ends its work everywhere."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.common.errors import Draining
from services.gateway.errors import ClientDisconnected
from services.gateway.request_scope import RequestScopes
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RawClient, RunningGateway, running_gateway, until
from tests.gateway.support.stations import delta, first, flood, silent


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()


async def endless(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
    """A stream that goes on."""
    yield first("x")
    while True:
        await asyncio.sleep(0.001)
        yield delta("y")


async def stuck(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
    """A first token and then nothing."""
    yield first("x")
    await asyncio.Event().wait()


async def leave_while_generating(gateway: RunningGateway, mark: bytes | None, **fields: Any) -> None:
    client = await RawClient.connect(gateway.port)
    await client.post("/v1/chat/completions", body(**fields))
    await asyncio.wait_for(gateway.stations.detokenizer.entered.wait(), 10)
    if mark is not None:
        await client.read_until(mark)
    await client.close()
    await asyncio.wait_for(gateway.stations.detokenizer.left.wait(), 10)
    await gateway.assert_idle()
    [line] = gateway.request_lines()
    assert line["outcome"] == "cancelled"


@pytest.mark.parametrize("stream", [True, False])
async def test_fieldbug_20_a_client_that_leaves_before_the_first_token(gateway: RunningGateway, stream: bool) -> None:
    gateway.stations.detokenizer.script = silent
    await leave_while_generating(gateway, None, stream=stream)


@pytest.mark.parametrize("script", [endless, stuck])
async def test_fieldbug_20_a_client_that_leaves_while_streaming(gateway: RunningGateway, script: Any) -> None:
    gateway.stations.detokenizer.script = script
    await leave_while_generating(gateway, b'"content":"x"', stream=True)


@pytest.mark.parametrize("script", [endless, stuck])
async def test_fieldbug_20_a_client_that_leaves_while_waiting_for_a_whole_answer(
    gateway: RunningGateway, script: Any
) -> None:
    gateway.stations.detokenizer.script = script
    await leave_while_generating(gateway, None, stream=False)


async def test_fieldbug_20_a_client_that_leaves_while_its_prompt_is_tokenised(gateway: RunningGateway) -> None:
    gateway.stations.tokenizer.before = asyncio.Event().wait
    client = await RawClient.connect(gateway.port)
    await client.post("/v1/chat/completions", body())
    await until(lambda: gateway.stations.tokenizer.running == 1)
    await client.close()
    await gateway.assert_idle()
    assert not gateway.stations.detokenizer.requests


async def test_fieldbug_20_a_client_that_leaves_while_its_request_waits_for_an_engine(gateway: RunningGateway) -> None:
    await gateway.stations.engine_hosts[0].set_serving(False)
    await until(lambda: not gateway.gateway.stations.engines.any_serving)
    client = await RawClient.connect(gateway.port)
    await client.post("/v1/chat/completions", body())
    await until(lambda: len(gateway.gateway.scopes) == 1)
    await client.close()
    await gateway.assert_idle()
    assert not gateway.stations.detokenizer.requests


async def test_fieldbug_25_nothing_is_left_after_a_mix_of_ends(gateway: RunningGateway) -> None:
    async def mixed(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        scripts = [gateway_script, silent, endless, stuck]
        async for message in scripts[request.request.priority](request, context):
            yield message

    gateway_script = gateway.stations.detokenizer.script
    gateway.stations.detokenizer.script = mixed
    clients = []
    for index in range(60):
        client = await RawClient.connect(gateway.port)
        await client.post("/v1/chat/completions", body(priority=index % 4, stream=index % 3 == 0))
        clients.append(client)
    await until(lambda: len(gateway.stations.detokenizer.requests) == 60)
    for client in clients:
        await client.close()
    await gateway.assert_idle()
    assert (await gateway.chat()).json()["choices"][0]["message"]["content"] == "Hello world"


async def test_a_client_that_stops_reading_ends_with_the_deadline() -> None:
    async with running_gateway(request_timeout=0.5) as gateway:
        gateway.stations.detokenizer.script = flood
        client = await RawClient.connect(gateway.port)
        await client.post("/v1/chat/completions", body(stream=True))
        await client.read_until(b'"content":"x"')
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.wait_for(gateway.stations.detokenizer.left.wait(), 10)
        client.writer.transport.abort()
        await gateway.assert_idle()


async def test_a_finished_request_on_a_kept_connection_is_no_disconnect(gateway: RunningGateway) -> None:
    for _ in range(3):
        assert (await gateway.chat()).status_code == 200
    await until(lambda: len(gateway.request_lines()) == 3)
    assert [line["outcome"] for line in gateway.request_lines()] == ["stop"] * 3


async def test_the_first_reason_to_end_wins() -> None:
    scopes = RequestScopes()

    async def work() -> None:
        with scopes.open(asyncio.get_running_loop().time() + 1000) as scope:
            scope.end(ClientDisconnected())
            scope.end(Draining("late"))
            await asyncio.Event().wait()

    with pytest.raises(ClientDisconnected):
        await work()
    assert len(scopes) == 0


async def test_a_cancel_from_outside_stays_a_cancel() -> None:
    scopes = RequestScopes()
    inside = asyncio.Event()

    async def work() -> None:
        with scopes.open(asyncio.get_running_loop().time() + 1000):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(scopes) == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_may_set_a_shorter_time_limit(gateway: RunningGateway, stream: bool) -> None:
    gateway.stations.detokenizer.script = silent
    response = await gateway.http.post(
        "/v1/chat/completions", content=body(stream=stream), headers={"x-request-timeout": "0.2"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    [context] = gateway.stations.detokenizer.contexts
    assert context.deadline is not None
    assert context.deadline < time.monotonic() + 1
    await gateway.assert_idle()


@pytest.mark.parametrize("given", ["", "x", "0", "-1", "nan", "5_0"])
async def test_a_time_limit_that_is_none_is_refused(gateway: RunningGateway, given: str) -> None:
    response = await gateway.http.post("/tokenize", json={"prompt": "x"}, headers={"x-request-timeout": given})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-timeout")


async def test_a_longer_time_limit_than_the_servers_does_not_count() -> None:
    async with running_gateway(request_timeout=0.2) as gateway:
        gateway.stations.detokenizer.script = silent
        headers = {"x-request-timeout": "inf"}
        response = await gateway.http.post("/v1/chat/completions", content=body(), headers=headers)
        assert response.status_code == 504

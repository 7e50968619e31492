"""The retry: what failed before the first token is tried once more, what failed after it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.common import errors
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RunningGateway, events, running_gateway, until
from tests.gateway.support.stations import Script, end, first, hello, silent


def fail_times(count: int, error: Exception) -> Script:
    """Fails the first `count` calls."""
    left = count

    async def script(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        nonlocal left
        if left > 0:
            left -= 1
            raise error
        async for message in hello(request, context):
            yield message

    return script


TRANSIENT = [
    errors.Unavailable("x"),
    errors.NotReady("x"),
    errors.Draining("x"),
    errors.EngineFailed("x"),
    errors.EngineLost("x"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: error.reason)
async def test_a_passing_failure_before_the_first_token_is_tried_once_more(
    gateway: RunningGateway, error: errors.PostroadError
) -> None:
    gateway.stations.detokenizer.script = fail_times(1, error)
    response = await gateway.chat()
    assert response.json()["choices"][0]["message"]["content"] == "Hello world"
    assert len(gateway.stations.detokenizer.requests) == 2
    assert len(gateway.stations.tokenizer.requests) == 1


@pytest.mark.parametrize("error", [errors.EngineFailed("again"), errors.InvalidArgument("never"), errors.Internal("x")])
async def test_no_third_try_and_no_second_one_for_what_does_not_pass(
    gateway: RunningGateway, error: errors.PostroadError
) -> None:
    gateway.stations.detokenizer.script = fail_times(5, error)
    assert (await gateway.chat()).status_code >= 400
    tries = 2 if isinstance(error, errors.Unavailable) else 1
    assert len(gateway.stations.detokenizer.requests) == tries
    await gateway.assert_idle()


async def test_the_second_try_goes_to_another_engine() -> None:
    async with running_gateway(engines=2) as gateway:
        await until(lambda: all(e.serving.is_set() for e in gateway.gateway.stations.engines.replicas))
        gateway.stations.detokenizer.script = fail_times(1, errors.EngineLost("x"))
        assert (await gateway.chat()).status_code == 200
        chosen = [context.engine for context in gateway.stations.detokenizer.contexts]
        assert set(chosen) == {host.address for host in gateway.stations.engine_hosts}
        await gateway.assert_idle()


async def test_the_second_try_waits_until_the_only_engine_serves_again(gateway: RunningGateway) -> None:
    [engine] = gateway.stations.engine_hosts

    async def lose_the_engine(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        gateway.stations.detokenizer.script = hello
        await engine.set_serving(False)
        raise errors.EngineLost("the connection broke")
        yield first()

    gateway.stations.detokenizer.script = lose_the_engine
    answer = asyncio.create_task(gateway.chat())
    await until(lambda: len(gateway.stations.detokenizer.requests) == 1)
    await until(lambda: not gateway.gateway.stations.engines.any_serving)
    assert not answer.done()
    await engine.set_serving(True)
    assert (await answer).status_code == 200


async def test_a_killed_engine_is_in_use_again_after_its_restart(gateway: RunningGateway) -> None:
    [engine] = gateway.stations.engine_hosts
    await engine.kill()
    answer = asyncio.create_task(gateway.chat())
    await until(lambda: len(gateway.gateway.scopes) == 1)
    await until(lambda: not gateway.gateway.stations.engines.any_serving)
    await engine.start()
    assert (await answer).status_code == 200


async def test_a_killed_tokenizer_delays_a_request_until_it_is_back(gateway: RunningGateway) -> None:
    called = asyncio.Event()

    async def hang() -> None:
        called.set()
        await asyncio.Event().wait()

    gateway.stations.tokenizer.before = hang
    answer = asyncio.create_task(gateway.chat())
    await called.wait()
    gateway.stations.tokenizer.before = None
    await gateway.stations.tokenizer_host.kill()
    await gateway.stations.tokenizer_host.start()
    assert (await answer).status_code == 200
    assert len(gateway.stations.tokenizer.requests) == 2


async def test_a_killed_detokenizer_delays_a_request_without_a_token(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = silent
    answer = asyncio.create_task(gateway.chat(stream=True))
    await gateway.stations.detokenizer.entered.wait()
    gateway.stations.detokenizer.script = hello
    await gateway.stations.detokenizer_host.kill()
    await gateway.stations.detokenizer_host.start()
    assert events((await answer).text)[-1] == "[DONE]"


async def test_a_killed_detokenizer_ends_a_running_stream_with_an_error_event(gateway: RunningGateway) -> None:
    async def stuck(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("x")
        await asyncio.Event().wait()

    gateway.stations.detokenizer.script = stuck
    answer = asyncio.create_task(gateway.chat(stream=True))
    await until(lambda: any(gateway.gateway.stations.engines.replicas[0].in_flight for _ in "1"))
    await gateway.stations.detokenizer.entered.wait()
    async with gateway.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        lines = response.aiter_lines()
        assert "x" in await anext(lines)
        await gateway.stations.detokenizer_host.kill()
        rest = [line async for line in lines if line]
    assert '"error"' in rest[-1]
    assert "127.0.0.1" not in rest[-1], "addresses inside are not for clients"
    assert "error" in events((await answer).text)[-1]
    await gateway.stations.detokenizer_host.start()
    await gateway.assert_idle()


async def test_fieldbug_26_a_station_that_stays_away_gives_503_with_retry_after() -> None:
    async with running_gateway(retry_wait=0.3) as gateway:
        await gateway.stations.tokenizer_host.kill()
        no_tokenizer = await gateway.chat()
        await gateway.stations.tokenizer_host.start()
        await gateway.stations.detokenizer_host.kill()
        no_detokenizer = await gateway.complete([1, 2])
        await gateway.stations.detokenizer_host.start()
        await gateway.stations.engine_hosts[0].kill()
        await until(lambda: not gateway.gateway.stations.engines.any_serving)
        no_engine = await gateway.complete([1, 2])
        for response in (no_tokenizer, no_detokenizer, no_engine):
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["type"] == "server_error"
        await gateway.assert_idle()


async def test_context_travels_to_every_station(gateway: RunningGateway) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"messages": [{"role": "user", "content": "x"}]}
    headers = {"x-request-id": "my-id:1", "traceparent": trace}
    response = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.headers["x-request-id"] == "my-id:1"
    [tokenizer], [detokenizer] = gateway.stations.tokenizer.contexts, gateway.stations.detokenizer.contexts
    assert tokenizer.request_id == detokenizer.request_id == "my-id:1"
    assert tokenizer.traceparent == detokenizer.traceparent == trace
    assert detokenizer.engine == gateway.stations.engine_hosts[0].address
    assert tokenizer.deadline is not None
    assert detokenizer.deadline is not None


@pytest.mark.parametrize("given", ["has space", "x" * 129, "é", ""])
async def test_an_unusable_request_id_is_replaced(gateway: RunningGateway, given: str) -> None:
    response = await gateway.http.get("/health", headers=[(b"x-request-id", given.encode())])
    assert response.headers["x-request-id"].startswith("req-")


async def test_fieldbug_24_a_duplicate_request_id_mixes_nothing(gateway: RunningGateway) -> None:
    async def echo(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("".join(chr(i) for i in request.request.prompt_ids))
        yield end()

    gateway.stations.detokenizer.script = echo

    async def ask(prompt: str) -> str:
        headers = {"x-request-id": "same"}
        response = await gateway.http.post("/v1/completions", json={"prompt": prompt}, headers=headers)
        return str(response.json()["choices"][0]["text"])

    prompts = [f"prompt {index}" for index in range(20)]
    assert await asyncio.gather(*map(ask, prompts)) == prompts


async def test_fieldbug_26_more_than_max_waiting_requests_for_an_absent_engine_get_429() -> None:
    async with running_gateway(max_waiting=2) as gateway:
        [engine] = gateway.stations.engine_hosts
        await engine.set_serving(False)
        await until(lambda: not gateway.gateway.stations.engines.any_serving)
        waiting = [asyncio.create_task(gateway.chat()) for _ in range(2)]
        await until(lambda: len(gateway.gateway.waiting) == 2)
        refused = await gateway.chat()
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        await engine.set_serving(True)
        assert [response.status_code for response in await asyncio.gather(*waiting)] == [200, 200]
        await gateway.assert_idle()


async def test_the_call_to_generate_is_open_while_the_tokenizer_works(gateway: RunningGateway) -> None:
    tokenising, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        tokenising.set()
        await go_on.wait()

    gateway.stations.tokenizer.before = hold
    answer = asyncio.create_task(gateway.chat())
    await tokenising.wait()
    assert gateway.gateway.stations.engines.in_flight == 1
    go_on.set()
    assert (await answer).status_code == 200
    assert len(gateway.stations.detokenizer.requests) == 1
    await gateway.assert_idle()


async def test_a_refusal_by_the_tokenizer_closes_the_call_to_generate(gateway: RunningGateway) -> None:
    async def refuse() -> None:
        raise errors.InvalidArgument("messages_json: no", "messages_json")

    gateway.stations.tokenizer.before = refuse
    assert (await gateway.chat()).status_code == 400
    assert gateway.stations.detokenizer.requests == []
    await gateway.assert_idle()

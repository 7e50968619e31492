from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import httpx
import openai
import pytest

from services.common import errors
from services.gateway.api.embeddings import MAX_INPUTS
from services.gateway.road import EMBEDDINGS_AT_ONCE
from services.pb.postroad.v1 import engine_pb2
from tests.gateway.support.running import RawClient, RunningGateway, running_gateway, until

LAST, MEAN = engine_pb2.POOLING_LAST, engine_pb2.POOLING_MEAN


async def embed(gateway: RunningGateway, given: Any = "hi", **fields: Any) -> httpx.Response:
    return await gateway.http.post("/v1/embeddings", json={"input": given, **fields})


def vectors(response: httpx.Response) -> list[list[float]]:
    return [entry["embedding"] for entry in response.json()["data"]]


async def test_the_answer(gateway: RunningGateway) -> None:
    response = await embed(gateway, "hi", model="smol")
    assert response.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [2.0, 104.0, 105 / 2**20]}],
        "model": "smol",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    assert "prefill" in response.headers["server-timing"]
    assert response.headers["x-request-id"]


async def test_every_form_of_input(gateway: RunningGateway) -> None:
    [engine] = gateway.stations.engines
    forms: list[tuple[Any, list[list[int]]]] = [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
    ]
    for given, prompts in forms:
        engine.embedded.clear()
        response = await embed(gateway, given)
        assert [list(request.prompt_ids) for request in engine.embedded] == prompts
        assert [entry["index"] for entry in response.json()["data"]] == list(range(len(prompts)))
        assert [vector[1] for vector in vectors(response)] == [ids[0] for ids in prompts]
        assert response.json()["usage"]["total_tokens"] == sum(map(len, prompts))


async def test_base64_is_float32_in_little_endian(gateway: RunningGateway) -> None:
    [plain] = vectors(await embed(gateway, encoding_format="float"))
    [encoded] = vectors(await embed(gateway, encoding_format="base64"))
    assert struct.unpack("<3f", base64.b64decode(encoded)) == tuple(plain)


async def test_what_reaches_the_engine(gateway: RunningGateway) -> None:
    await embed(gateway, pooling="mean", cache_salt="s", priority=7, user="me", dimensions=3, normalize=True)
    await embed(gateway, pooling="last", add_special_tokens=False)
    await embed(gateway, pooling=None, encoding_format=None, dimensions=None, messages=None)
    first, second, third = gateway.stations.engines[0].embedded
    assert (first.pooling, first.cache_salt, first.priority) == (MEAN, "s", 7)
    assert (second.pooling, third.pooling) == (LAST, engine_pb2.POOLING_UNSPECIFIED)
    assert gateway.stations.tokenizer.requests[1].add_special_tokens is False
    assert not gateway.stations.tokenizer.requests[2].HasField("add_special_tokens")


async def test_many_inputs_are_sent_a_few_at_a_time_and_come_back_in_order(gateway: RunningGateway) -> None:
    [engine] = gateway.stations.engines

    async def shuffle(request: engine_pb2.EmbedRequest) -> None:
        for _ in range(request.prompt_ids[0] % 3):
            await asyncio.sleep(0)

    engine.before_embed = shuffle
    response = await embed(gateway, [[i, 1] for i in range(5 * EMBEDDINGS_AT_ONCE)])
    assert [vector[1] for vector in vectors(response)] == list(range(5 * EMBEDDINGS_AT_ONCE))
    assert engine.most_running <= EMBEDDINGS_AT_ONCE
    await gateway.assert_idle()


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": [[1], []]}, "input[1]"),
    ({"input": 3}, "input"),
    ({"input": [1, "a"]}, "input[1]"),
    ({"input": ["a", 1]}, "input[1]"),
    ({"input": [-1]}, "input[0]"),
    ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "dimensions": 2}, "dimensions"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "pooling": "cls"}, "pooling"),
    ({"input": "a", "user": 3}, "user"),
    ({"input": "a", "priority": 101}, "priority"),
    ({"input": "a", "cache_salt": "x" * 257}, "cache_salt"),
    ({"input": "a", "normalize": False}, "normalize"),
    ({"input": "a", "stream": True}, "stream"),
    ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
    ({"input": "a", "endianness": "big"}, "endianness"),
    ({"input": "a", "messages": []}, "messages"),
    ({"input": "a", "model": "x"}, "model"),
]


async def test_refusals_name_the_field(gateway: RunningGateway) -> None:
    for body, param in REFUSALS:
        response = await gateway.http.post("/v1/embeddings", json=body)
        assert response.status_code in (400, 404), body
        error = response.json()["error"]
        assert error["param"] == param, body
        assert param in error["message"]
    assert not gateway.stations.engines[0].embedded
    await gateway.assert_idle()


async def test_what_is_allowed_is_said(gateway: RunningGateway) -> None:
    async def message(**fields: Any) -> str:
        return str((await embed(gateway, **fields)).json()["error"]["message"])

    assert await message(encoding_format="int8") == "encoding_format must be float or base64"
    assert await message(pooling="cls") == "pooling must be last or mean"
    assert await message(dimensions=2) == "dimensions must be 3, the model's own size, or left out"


@pytest.mark.parametrize(("given", "param"), [([9], "input"), ([[5], [9]], "input[1]")])
async def test_fieldbug_13_and_17_the_engine_s_refusals_name_the_input(
    gateway: RunningGateway, given: Any, param: str
) -> None:
    async def refuse(request: engine_pb2.EmbedRequest) -> None:
        if request.prompt_ids[0] == 9:
            raise errors.InvalidArgument("prompt_ids has the token id 9, which is not in the vocabulary", "prompt_ids")

    gateway.stations.engines[0].before_embed = refuse
    response = await embed(gateway, given)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param} has the token id 9")
    await gateway.assert_idle()


async def test_the_first_failure_ends_the_other_inputs(gateway: RunningGateway) -> None:
    [engine] = gateway.stations.engines

    async def fail_one(request: engine_pb2.EmbedRequest) -> None:
        if request.prompt_ids[0] == 3:
            raise errors.QueueFull("1024 requests wait")
        await asyncio.Event().wait()

    engine.before_embed = fail_one
    response = await embed(gateway, [[1], [2], [3], [4]])
    assert response.status_code == 429
    assert response.headers["retry-after"]
    await until(lambda: engine.running == 0)
    await gateway.assert_idle()


async def test_fieldbug_20_a_client_that_leaves_ends_the_work(gateway: RunningGateway) -> None:
    [engine] = gateway.stations.engines

    async def hang(request: engine_pb2.EmbedRequest) -> None:
        await asyncio.Event().wait()

    engine.before_embed = hang
    client = await RawClient.connect(gateway.port)
    await client.post("/v1/embeddings", b'{"input": [[1], [2], [3]]}')
    await until(lambda: engine.running == 3)
    await client.close()
    await until(lambda: engine.running == 0)
    await gateway.assert_idle()
    await until(lambda: len(gateway.request_lines()) == 1)
    [line] = gateway.request_lines()
    assert (line["outcome"], line["status"]) == ("cancelled", 499)


async def test_a_deadline_ends_the_request(gateway: RunningGateway) -> None:
    async def hang(request: engine_pb2.EmbedRequest) -> None:
        await asyncio.Event().wait()

    gateway.stations.engines[0].before_embed = hang
    response = await gateway.http.post("/v1/embeddings", json={"input": "a"}, headers={"x-request-timeout": "0.1"})
    assert response.status_code == 504
    await until(lambda: gateway.stations.engines[0].running == 0)
    await gateway.assert_idle()


@pytest.mark.parametrize("error", [errors.EngineFailed("x"), errors.Draining("x")], ids=lambda error: error.reason)
async def test_a_passing_failure_is_tried_once_more(gateway: RunningGateway, error: errors.PostroadError) -> None:
    [engine] = gateway.stations.engines
    left = 1

    async def fail(request: engine_pb2.EmbedRequest) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error

    engine.before_embed = fail
    assert (await embed(gateway)).status_code == 200
    assert len(engine.embedded) == 2
    left = 2
    assert (await embed(gateway)).status_code == 503
    assert len(engine.embedded) == 4
    await gateway.assert_idle()


async def test_another_engine_takes_over_from_one_that_was_killed() -> None:
    async with running_gateway(engines=2) as gateway:
        engines = gateway.stations.engines
        await until(lambda: all(e.serving.is_set() for e in gateway.gateway.stations.engines.replicas))

        async def hang(request: engine_pb2.EmbedRequest) -> None:
            await asyncio.Event().wait()

        for engine in engines:
            engine.before_embed = hang
        request = asyncio.create_task(embed(gateway, "hi"))
        await until(lambda: any(engine.running for engine in engines))
        chosen = 0 if engines[0].running else 1
        engines[1 - chosen].before_embed = None
        await gateway.stations.engine_hosts[chosen].kill()
        assert (await request).status_code == 200
        assert len(engines[1 - chosen].embedded) == 1
        await gateway.assert_idle()


async def test_times_metrics_and_the_log_line(gateway: RunningGateway) -> None:
    response = await embed(gateway, ["ab", "c"], timings=True)
    timings = response.json()["timings"]
    phases = sum(value for name, value in timings.items() if name != "total_ms")
    assert phases == pytest.approx(timings["total_ms"], abs=5)
    assert timings["prefill_ms"] == pytest.approx(0.02)
    assert timings["decode_ms"] == timings["detokenise_ms"] == 0
    await until(lambda: len(gateway.request_lines()) == 1)
    [line] = gateway.request_lines()
    assert (line["outcome"], line["path"], line["prompt_tokens"]) == ("ok", "/v1/embeddings", 3)
    assert (line["completion_tokens"], line["cached_tokens"]) == (0, 2)
    sample = gateway.gateway.registry.get_sample_value
    assert sample("postroad_http_requests_total", {"path": "/v1/embeddings", "status": "200"}) == 1
    assert sample("postroad_e2e_request_latency_seconds_count") == 1
    assert sample("postroad_time_to_first_token_seconds_count") == 0
    [first, _] = gateway.stations.engines[0].contexts
    assert first.request_id == response.headers["x-request-id"]
    assert first.time_remaining() is not None


async def test_the_official_client(gateway: RunningGateway) -> None:
    """It asks for base64 unless told otherwise."""
    url = f"http://127.0.0.1:{gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        answer = await client.embeddings.create(model="smol", input=["hi", "x"])
        assert [entry.embedding for entry in answer.data] == [[2, 104, 105 / 2**20], [1, 120, 120 / 2**20]]
        assert [entry.index for entry in answer.data] == [0, 1]
        assert answer.usage.total_tokens == 3
        plain = await client.embeddings.create(
            model="smol", input=[1, 2], encoding_format="float", dimensions=3, user="me", extra_body={"pooling": "mean"}
        )
        assert plain.data[0].embedding == [2, 1, 2 / 2**20]
        with pytest.raises(openai.BadRequestError) as raised:
            await client.embeddings.create(model="smol", input="")
        assert raised.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="text-embedding-3-small", input="x")

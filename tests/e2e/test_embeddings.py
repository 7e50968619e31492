"""Embeddings over HTTP equal what transformers' last hidden states say: same weights, float32."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import openai
import pytest
import torch

from tests.e2e.client import Client, until, user
from tests.support.stack import Stack

TOLERANCE = 1e-4
TEXTS = [
    "The capital of France is Paris.",
    "日本の首都は東京です。",
    "A letter changes horses at every station, and keeps its seal. " * 45,  # more than one step's budget
]
Vector = list[float]


async def embed(client: Client, given: Any, **fields: Any) -> list[Vector]:
    response = await client.post("/v1/embeddings", input=given, **fields)
    assert response.status_code == 200, response.text
    return [entry["embedding"] for entry in response.json()["data"]]


def expected(model: Any, token_ids: list[int]) -> dict[str, Any]:
    """By pooling, normalised."""
    with torch.inference_mode():
        states = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states[-1][0].double()
    pooled = {"last": states[-1], "mean": states.mean(0)}
    return {name: (vector / vector.norm()).numpy() for name, vector in pooled.items()}


async def test_embeddings_equal_transformers_alone_together_cold_and_warm(
    real_stack: Stack, reference_model: tuple[Any, Any]
) -> None:
    async with Client(real_stack) as client:
        ids = [(await client.post("/tokenize", prompt=text)).json()["tokens"] for text in TEXTS]
        assert len(ids[-1]) > 512
        oracle = [expected(reference_model[0], one) for one in ids]
        for pooling in ("last", "mean"):
            together = await embed(client, TEXTS, pooling=pooling)
            for vector, wanted in zip(together, oracle, strict=True):
                np.testing.assert_allclose(vector, wanted[pooling], atol=TOLERANCE)
            assert [(await embed(client, one, pooling=pooling))[0] for one in ids] == together, "warm, alone"
        [by_default] = await embed(client, TEXTS[0])
        assert by_default == (await embed(client, TEXTS[0], pooling="last"))[0]
        await client.wait_idle()


async def test_beside_running_streams_nothing_changes(real_stack: Stack) -> None:
    body = {"messages": user("Count to a hundred."), "temperature": 0, "max_tokens": 24}
    async with Client(real_stack) as client:
        text, vectors = await client.text(**body), await embed(client, TEXTS[:2] * 4, pooling="mean")
        streams = [client.stream(**body) for _ in range(4)]
        calls = [embed(client, TEXTS[:2] * 4, pooling="mean", cache_salt=str(i)) for i in range(3)]
        texts, embedded = await asyncio.gather(asyncio.gather(*streams), asyncio.gather(*calls))
        assert {one.text for one in texts} == {text}
        assert all(one == vectors for one in embedded)
        await client.wait_idle()


async def test_a_client_that_leaves_and_one_that_asks_too_much(real_stack: Stack) -> None:
    async with Client(real_stack) as client:
        leaving = asyncio.create_task(embed(client, [TEXTS[2] + str(i) for i in range(8)]))

        async def running() -> bool:
            return (await client.engine_read_out()).requests["engine_live"] > 0

        await until(running, 30, lambda: "nothing runs")
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await client.wait_idle()
        [model] = (await client.http.get("/v1/models")).json()["data"]
        refusals = [
            ([1] * (model["max_model_len"] + 1), "input", "context_length_exceeded"),
            ([[1], [2**31]], "input[1]", "invalid_value"),
        ]
        for given, param, code in refusals:
            response = await client.post("/v1/embeddings", input=given)
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (400, param, code)
        await client.wait_idle()


async def test_the_official_client_and_another_executor_s_vectors(real_stack: Stack, scripted_stack: Stack) -> None:
    for stack, size in ((real_stack, 576), (scripted_stack, 576)):
        async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
            first = await client.embeddings.create(model="default", input=TEXTS[:2], dimensions=size)
            second = await client.embeddings.create(model="default", input=TEXTS[:2], encoding_format="float")
            assert [one.embedding for one in first.data] == [one.embedding for one in second.data]
            assert all(np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-5) for one in first.data)
            with pytest.raises(openai.BadRequestError, match="dimensions must be 576"):
                await client.embeddings.create(model="default", input="x", dimensions=64)

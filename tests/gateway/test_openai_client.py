"""The official client against the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from services.common import errors
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RunningGateway
from tests.gateway.support.stations import first
from tests.gateway.test_errors import failing

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="smol", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="smol", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7


async def test_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="smol", prompt="hi")
    assert answer.choices[0].text == "Hello world"
    stream = await client.completions.create(model="smol", prompt=[1, 2], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["smol"]
    assert (await client.models.retrieve("smol")).owned_by == "postroad"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidArgument("odd", "seed"), openai.BadRequestError),
        (errors.QueueFull("full"), openai.RateLimitError),
        (errors.EngineFailed("failed"), openai.InternalServerError),
    ],
)
async def test_error_classes(
    gateway: RunningGateway, client: openai.AsyncOpenAI, error: errors.PostroadError, kind: type[openai.APIStatusError]
) -> None:
    gateway.stations.detokenizer.script = failing(error)
    with pytest.raises(kind) as raised:
        await client.chat.completions.create(model="smol", messages=MESSAGES)
    assert raised.value.param == error.param
    assert raised.value.request_id


async def test_another_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="gpt-4", messages=MESSAGES)


async def test_fieldbug_27_an_error_in_mid_stream_is_raised_by_the_client(
    gateway: RunningGateway, client: openai.AsyncOpenAI
) -> None:
    gateway.stations.detokenizer.script = failing(errors.EngineLost("gone"), first("x"))
    stream = await client.chat.completions.create(model="smol", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="gone"):
        async for _ in stream:
            pass


async def test_a_client_that_breaks_off_its_stream_ends_the_work(
    gateway: RunningGateway, client: openai.AsyncOpenAI
) -> None:
    async def endless(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("x")
        await asyncio.Event().wait()

    gateway.stations.detokenizer.script = endless
    stream = await client.chat.completions.create(model="smol", messages=MESSAGES, stream=True)
    async with stream:
        await anext(aiter(stream))
    await asyncio.wait_for(gateway.stations.detokenizer.left.wait(), 10)
    await gateway.assert_idle()

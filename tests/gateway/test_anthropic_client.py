"""Anthropic's official client against the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from services.common import errors
from tests.gateway.api.messages.support import WEATHER
from tests.gateway.api.test_tools import TEXT, says
from tests.gateway.support.running import RunningGateway
from tests.gateway.support.stations import first
from tests.gateway.test_api_keys import ALICE, guarded_gateway
from tests.gateway.test_errors import failing

MESSAGES: Any = [{"role": "user", "content": "hi"}]
ASKED: Any = {"model": "smol", "max_tokens": 50, "messages": MESSAGES}


def a_client(gateway: RunningGateway, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{gateway.port}", api_key=key, max_retries=0)


@pytest_asyncio.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with a_client(gateway) as client:
        yield client


async def test_a_stream_is_the_whole_message(gateway: RunningGateway, client: anthropic.AsyncAnthropic) -> None:
    says(gateway, TEXT)
    whole = await client.messages.create(**ASKED, tools=[WEATHER])
    async with client.messages.stream(**ASKED, tools=[WEATHER]) as stream:
        texts = [text async for text in stream.text_stream]
        streamed = await stream.get_final_message()
    assert whole._request_id
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert "".join(texts) == "Looking."
    left_out: Any = {"id": True, "content": {"__all__": {"id", "parsed_output"}}}
    assert streamed.model_dump(exclude=left_out, exclude_none=True) == whole.model_dump(
        exclude=left_out, exclude_none=True
    )


async def test_count_tokens(client: anthropic.AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model="smol", messages=MESSAGES, tools=[WEATHER])
    assert counted.input_tokens == len("<user>hi")


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (errors.InvalidArgument("odd", "seed"), anthropic.BadRequestError, "invalid_request_error"),
        (errors.TooLarge("large"), anthropic.APIStatusError, "request_too_large"),
        (errors.QueueFull("full"), anthropic.RateLimitError, "rate_limit_error"),
        (errors.Internal("broken"), anthropic.InternalServerError, "api_error"),
        (errors.EngineFailed("failed"), anthropic.InternalServerError, "overloaded_error"),
        (errors.DeadlineExceeded("over"), anthropic.InternalServerError, "timeout_error"),
    ],
)
async def test_error_classes(
    gateway: RunningGateway,
    client: anthropic.AsyncAnthropic,
    error: errors.PostroadError,
    kind: type[anthropic.APIStatusError],
    name: str,
) -> None:
    gateway.stations.detokenizer.script = failing(error)
    with pytest.raises(kind) as raised:
        await client.messages.create(**ASKED)
    assert raised.value.type == name
    assert raised.value.request_id


async def test_another_model_is_not_found(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        await client.messages.create(**{**ASKED, "model": "claude"})


async def test_an_error_in_mid_stream_is_raised(gateway: RunningGateway, client: anthropic.AsyncAnthropic) -> None:
    gateway.stations.detokenizer.script = failing(errors.EngineLost("gone"), first("x"))
    async with client.messages.stream(**ASKED) as stream:
        with pytest.raises(anthropic.APIStatusError, match="gone"):
            await stream.get_final_message()


async def test_api_keys(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        async with a_client(gateway, ALICE) as client:
            assert (await client.messages.create(**ASKED)).content
        async with a_client(gateway, "sk-nobody-0123456789") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(**ASKED)

"""OpenAI's official client for Python on the running product: what its users call, and what they catch.

Errors that a running road does not show on demand are in tests/gateway/test_openai_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.client import Client
from tests.e2e.tool_texts import WEATHER
from tests.support.stack import Stack

ASKED: Any = {
    "model": "default",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 12,
}


@pytest.fixture
def client(real_stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real_stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def tool_client(tool_stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_whole_streamed_and_by_the_stream_helper(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED)
    content = whole.choices[0].message.content
    assert content
    assert whole.usage is not None
    assert whole.id.endswith(str(whole._request_id))

    chunks = list(client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens

    with client.chat.completions.stream(**ASKED, logprobs=True, top_logprobs=2) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert final.message.content == content
    assert final.logprobs is not None
    assert final.logprobs.content is not None
    assert len(final.logprobs.content) == whole.usage.completion_tokens
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= set(events)


def test_a_schema_is_parsed_whole_and_streamed(client: openai.OpenAI) -> None:
    class City(BaseModel):
        name: str = Field(max_length=12)
        kind: Literal["harbour", "plain"]

    asked = ASKED | {"max_tokens": 60, "seed": 3}
    whole = client.chat.completions.parse(**asked, response_format=City).choices[0].message.parsed
    with client.chat.completions.stream(**asked, response_format=City) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(whole, City)
    assert streamed == whole


@pytest.mark.parametrize("streamed", [False, True])
def test_a_loop_with_tools(tool_client: openai.OpenAI, streamed: bool) -> None:
    """Ask, call the functions, give their results back, get the answer."""
    messages: list[Any] = [{"role": "user", "content": "Weather in Köln and Rom?"}]
    for _ in range(2):
        asked: Any = {"model": "default", "messages": messages, "tools": [WEATHER]}
        if streamed:
            with tool_client.chat.completions.stream(**asked) as stream:
                message: Any = stream.get_final_completion().choices[0].message
        else:
            message = tool_client.chat.completions.create(**asked).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or ()]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[-1]["content"] == "It is sunny in Köln."


def test_text_completions(client: openai.OpenAI) -> None:
    asked: Any = {"model": "default", "prompt": ["1, 2, 3,", "a b"], "n": 2, "max_tokens": 4, "seed": 1, "logprobs": 2}
    whole = client.completions.create(**asked, echo=True)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [choice.text[:3] for choice in whole.choices] == ["1, ", "1, ", "a b", "a b"]
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens) == choice.text
    texts = [""] * 4
    for chunk in client.completions.create(**asked, echo=True, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_responses_whole_streamed_and_parsed(client: openai.OpenAI) -> None:
    asked: Any = {"model": "default", "input": "What is the capital of France?", "temperature": 0}
    whole = client.responses.create(**asked, max_output_tokens=20)
    assert whole.output_text
    assert whole.usage is not None
    with client.responses.stream(**asked, max_output_tokens=20) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens

    class City(BaseModel):
        name: str = Field(max_length=12)

    assert isinstance(client.responses.parse(**asked, text_format=City).output_parsed, City)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**asked, previous_response_id="resp_1")
    assert raised.value.param == "previous_response_id"


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert client.models.retrieve(model.id) == model
    assert client.models.retrieve("default").id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("change", "kind", "param", "code"),
    [
        ({"temperature": 7}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"messages": []}, openai.BadRequestError, "messages", "invalid_value"),
        ({"audio": {"voice": "x"}}, openai.BadRequestError, "audio", "unsupported_parameter"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
        ({"model": "another"}, openai.NotFoundError, "model", "model_not_found"),
    ],
)
def test_what_is_raised(  # noqa: PLR0917
    client: openai.OpenAI, change: Any, kind: type[openai.APIStatusError], param: str, code: str, streamed: bool
) -> None:
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**(ASKED | change), stream=streamed)
    assert (raised.value.param, raised.value.code, raised.value.type) == (param, code, "invalid_request_error")
    assert raised.value.request_id


def test_a_path_that_does_not_exist_and_a_time_out(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="x")
    endless = ASKED | {"max_tokens": 2000, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.InternalServerError) as raised:
        client.chat.completions.create(**endless, extra_headers={"x-request-timeout": "0.3"})
    assert (raised.value.status_code, raised.value.code) == (504, "deadline_exceeded")
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**endless, timeout=0.3)


async def test_the_async_client_leaves_a_stream(real_stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{real_stack.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(**(ASKED | {"max_tokens": 2000}), stream=True)
        async with stream:
            await anext(aiter(stream))
    async with Client(real_stack) as plain:
        await plain.wait_idle()

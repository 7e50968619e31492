"""Responses over the whole road, by OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.client import Client, user
from tests.e2e.tool_texts import TEXTS, TIME, WEATHER
from tests.support.stack import Stack

TOOLS: Any = [{"type": "function", **tool["function"]} for tool in (WEATHER, TIME)]
LOGPROBS: Any = ["message.output_text.logprobs"]


def client_of(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)


def without_ids(output: Any) -> list[dict[str, Any]]:
    return [item.model_dump(exclude={"id", "call_id"}) for item in output]


@pytest.mark.parametrize("word", TEXTS)
async def test_a_stream_equals_the_whole_response(tool_stack: Stack, word: str) -> None:
    async with client_of(tool_stack) as client:
        asked: Any = {"model": "default", "input": word or "plain", "tools": TOOLS, "max_output_tokens": 200}
        whole = await client.responses.create(**asked)
        *_, last = [event async for event in await client.responses.create(**asked, stream=True)]
        assert last.type == f"response.{whole.status}"
        assert without_ids(last.response.output) == without_ids(whole.output)
        assert last.response.usage is not None
        assert whole.usage is not None
        assert last.response.usage.output_tokens_details == whole.usage.output_tokens_details
        assert (whole.usage.output_tokens_details.reasoning_tokens > 0) == (whole.output[0].type == "reasoning")


async def test_a_loop_with_tools(tool_stack: Stack) -> None:
    """As clients do it: the output goes behind the input, with what the calls returned."""
    async with client_of(tool_stack) as client:
        items: list[Any] = [{"role": "user", "content": "WITH-THOUGHT: weather in Köln?"}]
        first = await client.responses.create(model="default", input=items, tools=TOOLS)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        items += first.output
        for item in first.output:
            if item.type == "function_call":
                assert json.loads(item.arguments) == {"city": "Köln", "unit": "C"}
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": "sunny"})
        second = await client.responses.create(model="default", input=items, tools=TOOLS)
        assert second.status == "completed"
        assert second.usage is not None
        assert first.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens


async def test_the_real_model_says_what_it_says_in_a_chat(real_stack: Stack) -> None:
    fields: dict[str, Any] = {"temperature": 0, "top_logprobs": 2}
    async with client_of(real_stack) as openai_client, Client(real_stack) as client:
        question = "What is the capital of France?"
        chat = await client.whole(messages=user(question), max_tokens=12, logprobs=True, **fields)
        response = await openai_client.responses.create(
            model="default", input=question, max_output_tokens=12, include=LOGPROBS, **fields
        )
    (choice,) = chat["choices"]
    (message,) = response.output
    assert message.type == "message"
    assert response.output_text == choice["message"]["content"]
    content = message.content[0].model_dump()
    assert [token["token"] for token in content["logprobs"]] == [one["token"] for one in choice["logprobs"]["content"]]
    assert all(len(token["top_logprobs"]) == 2 for token in content["logprobs"])
    assert response.usage is not None
    assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert response.usage.output_tokens == chat["usage"]["completion_tokens"]


class City(BaseModel):
    """Of values that end: the small model writes numbers without one."""

    name: Literal["Paris", "Rome"]
    is_capital: bool


async def test_the_real_model_keeps_to_a_form(real_stack: Stack) -> None:
    async with client_of(real_stack) as client:
        asked: Any = {"model": "default", "input": "Paris, as JSON", "max_output_tokens": 60, "temperature": 0}
        parsed = await client.responses.parse(**asked, text_format=City)
        assert isinstance(parsed.output_parsed, City)
        async with client.responses.stream(**asked, text_format=City) as stream:
            assert (await stream.get_final_response()).output_parsed == parsed.output_parsed
        named: Any = {"type": "function", "name": "get_weather"}
        called = await client.responses.create(**asked, tools=TOOLS, tool_choice=named)
        (call,) = called.output
        assert call.type == "function_call"
        assert set(json.loads(call.arguments)) == {"city", "unit"}


async def test_best_of_is_the_best_of_its_candidates(real_stack: Stack) -> None:
    asked: dict[str, Any] = {"model": "default", "prompt": "Once upon a time", "seed": 5, "max_tokens": 8}
    async with client_of(real_stack) as client:
        candidates = await client.completions.create(**asked, n=5, logprobs=0)
        best = await client.completions.create(**asked, n=2, best_of=5)

    def mean(choice: Any) -> float:
        logprobs = choice.logprobs.token_logprobs
        return float(sum(logprobs) / len(logprobs))

    ranked = sorted(candidates.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.logprobs for choice in best.choices] == [None, None]
    assert best.usage is not None
    assert candidates.usage is not None
    assert best.usage.completion_tokens == candidates.usage.completion_tokens == 40


async def test_a_response_that_is_left_ends_its_work(real_stack: Stack) -> None:
    async with client_of(real_stack) as client, Client(real_stack) as own:
        stream: AsyncIterator[Any] = await client.responses.create(
            model="default", input="Count to a thousand", stream=True, extra_body={"ignore_eos": True}
        )
        async with stream:  # type: ignore[attr-defined]
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
        await own.wait_idle()

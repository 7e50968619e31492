"""Tool calls over the whole road: scripted texts, and calls that a grammar makes the model write."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.e2e.client import Client, user
from tests.e2e.tool_texts import TIME, WEATHER
from tests.support.stack import Stack


async def test_a_stream_equals_the_whole_answer(tool_stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{tool_stack.url}/v1", api_key="none", max_retries=0) as client:
        for text in ("WITH-THOUGHT", "plain"):
            asked: Any = {"model": "default", "messages": user(text), "tools": [WEATHER]}
            whole = (await client.chat.completions.create(**asked)).choices[0]
            async with client.chat.completions.stream(**asked) as stream:
                streamed = (await stream.get_final_completion()).choices[0]
            calls, same = whole.message.tool_calls, streamed.message.tool_calls
            assert calls
            assert same
            assert [(one.type, one.function.name) for one in calls] == [("function", "get_weather")] * len(calls)  # type: ignore[union-attr]
            assert [one.function.arguments for one in calls] == [one.function.arguments for one in same]  # type: ignore[union-attr]
            assert len({one.id for one in calls}) == len(calls)
            assert whole.finish_reason == streamed.finish_reason == "tool_calls"
            assert (whole.message.content or "") == streamed.message.content  # a stream begins with an empty text


async def test_reasoning_and_content_before_a_call(tool_stack: Stack) -> None:
    async with Client(tool_stack) as client:
        choice = (await client.whole(messages=user("WITH-THOUGHT"), tools=[WEATHER]))["choices"][0]
        assert choice["message"]["reasoning_content"] == "Which city?"
        assert choice["message"]["content"] == "Let me look."
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln", "unit": "C"}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_real_model_calls_the_function_that_it_is_told_to(real_stack: Stack, seed: int) -> None:
    body = {
        "messages": user("What is the weather in Paris?"),
        "tools": [WEATHER, TIME],
        "seed": seed,
        "max_tokens": 200,
    }
    async with Client(real_stack) as client:
        named = {"type": "function", "function": {"name": "get_weather"}}
        (call,) = (await client.whole(**body, tool_choice=named))["choices"][0]["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert set(arguments) == {"city", "unit"}
        assert arguments["unit"] in ("C", "F")
        choice = (await client.whole(**body, tool_choice="required", parallel_tool_calls=False))["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"]["name"] in ("get_weather", "get_time")
        assert isinstance(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), dict)


@pytest.mark.parametrize("place", [0, 1])
async def test_a_schema_that_cannot_be_enforced_is_named_by_its_tool(tool_stack: Stack, place: int) -> None:
    """Forced calls share one form; the error is about the tool at fault, in the words of each API."""
    good, bad = {"type": "object"}, {"type": "object", "properties": {"x": {"pattern": "(?=a)", "type": "string"}}}
    schemas = [bad, good] if place == 0 else [good, bad]
    functions = [{"name": f"f{index}", "parameters": schema} for index, schema in enumerate(schemas)]
    chat = {"messages": user("x"), "tools": [{"type": "function", "function": one} for one in functions]}
    flat = {"input": "x", "tools": [{"type": "function", **one} for one in functions]}
    message_tools = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
    message = {"model": "default", "max_tokens": 9, "messages": user("x"), "tools": message_tools}
    async with Client(tool_stack) as client:
        for path, body, param in (
            ("/v1/chat/completions", chat | {"tool_choice": "required"}, f"tools[{place}].function.parameters"),
            ("/v1/responses", flat | {"tool_choice": "required"}, f"tools[{place}].parameters"),
            ("/v1/messages", message | {"tool_choice": {"type": "any"}}, f"tools[{place}].input_schema"),
        ):
            response = await client.post(path, **body)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["message"].startswith(f"{param}: the schema cannot be used")
        await client.wait_idle()

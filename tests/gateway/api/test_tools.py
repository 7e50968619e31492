"""Tools of a chat: what the stations get, what the client gets, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from services.gateway.api.tool_use import MAX_TOOLS
from tests.gateway.support.running import RunningGateway, events
from tests.gateway.support.stations import delta, end, first

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
TEXT = (
    '<think>\nHm.\n</think>\n\nLooking.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
)


def says(
    gateway: RunningGateway, text: str, tool_calls: str = "hermes", reasoning: str = "think", *, size: int = 1
) -> None:
    """The model writes `text` in these formats: tokens of one character, `size` of them at a time."""

    async def script(request: Any, context: Any) -> Any:
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            message = delta(piece) if start else first(piece)
            message.num_tokens = len(piece)
            message.token_offsets.extend(range(start, start + len(piece)))
            yield message
        yield end(completion_tokens=len(text))

    gateway.stations.detokenizer.script = script
    gateway.stations.tokenizer.formats = {"tool_call_format": tool_calls, "reasoning_format": reasoning}


async def chat(gateway: RunningGateway, **body: Any) -> dict[str, Any]:
    response = await gateway.chat(**body_of(body))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]  # type: ignore[no-any-return]


def body_of(more: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [WEATHER, NOW], **more}


async def test_fieldbug_36_a_stream_of_tool_calls_ends_as_the_whole_answer_does(gateway: RunningGateway) -> None:
    says(gateway, TEXT)
    whole = await chat(gateway)
    message, calls = whole["message"], whole["message"]["tool_calls"]
    assert whole["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Looking.")
    assert [call["function"] for call in calls] == [{"name": "weather", "arguments": '{"city": "Rom"}'}]
    assert calls[0]["type"] == "function"
    assert calls[0]["id"].startswith("call_")

    streamed = await gateway.chat(**body_of({"stream": True}))
    deltas = [event["choices"][0] for event in events(streamed.text)[:-1]]
    pieces = [call for choice in deltas for call in choice["delta"].get("tool_calls", ())]
    assert deltas[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    assert [choice["finish_reason"] for choice in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert "".join(choice["delta"].get("reasoning_content") or "" for choice in deltas) == "Hm."
    assert "".join(choice["delta"].get("content") or "" for choice in deltas) == "Looking."
    assert (pieces[0]["function"], pieces[0]["type"]) == ({"name": "weather", "arguments": ""}, "function")
    assert all(set(piece) == {"index", "function"} for piece in pieces[1:])
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"city": "Rom"}'


async def test_reasoning_tokens_are_counted(gateway: RunningGateway) -> None:
    """The tags are among them, and how the deltas cut the text makes no difference."""
    text = "<think>four</think>answer"
    for size in (1, 4, len(text)):
        says(gateway, text, size=size)
        usage = (await gateway.chat(**body_of({}))).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == len("<think>four</think>")
    assert gateway.stations.detokenizer.requests[-1].report_token_offsets
    says(gateway, text, reasoning="")
    usage = (await gateway.chat(**body_of({}))).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    assert not gateway.stations.detokenizer.requests[-1].report_token_offsets


async def test_reasoning_tokens_so_far(gateway: RunningGateway) -> None:
    says(gateway, "<think>four</think>answer", size=10)
    options = {"continuous_usage_stats": True, "include_usage": True}
    streamed = await gateway.chat(**body_of({"stream": True, "stream_options": options}))
    usages = [event["usage"]["completion_tokens_details"]["reasoning_tokens"] for event in events(streamed.text)[:-1]]
    assert list(dict.fromkeys(usages)) == [10, 19]


async def test_reasoning_that_the_prompt_has_begun(gateway: RunningGateway) -> None:
    says(gateway, "Hm.</think>Yes.")
    gateway.stations.tokenizer.formats["reasoning_open"] = True
    message = (await chat(gateway))["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")


async def test_the_tools_reach_the_template_unless_none_may_be_called(gateway: RunningGateway) -> None:
    await chat(gateway)
    assert json.loads(gateway.stations.tokenizer.requests[-1].tools_json) == [WEATHER, NOW]
    says(gateway, TEXT)
    off = await chat(gateway, tool_choice="none")
    assert not gateway.stations.tokenizer.requests[-1].HasField("tools_json")
    assert "<tool_call>" in off["message"]["content"]
    assert off["finish_reason"] == "stop"


@pytest.mark.parametrize(("model_format", "kept"), [("hermes", False), ("mistral", True), ("", False)])
async def test_special_tokens_that_mark_calls_stay_in_the_text(
    gateway: RunningGateway, model_format: str, kept: bool
) -> None:
    says(gateway, "hi", tool_calls=model_format)
    await chat(gateway)
    request = gateway.stations.detokenizer.requests[-1]
    assert (request.HasField("skip_special_tokens") and not request.skip_special_tokens) == kept


async def test_a_named_function_is_enforced_by_its_schema(gateway: RunningGateway) -> None:
    says(gateway, '{"city": "Rom"}')
    choice = await chat(gateway, tool_choice={"type": "function", "function": {"name": "weather"}})
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rom"}'
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "stop"
    asked = gateway.stations.detokenizer.requests[-1].request.structured_output
    assert json.loads(asked.json_schema) == SCHEMA


@pytest.mark.parametrize("parallel", [True, False])
async def test_required_is_enforced_by_an_array_of_calls(gateway: RunningGateway, parallel: bool) -> None:
    says(gateway, '[{"name": "now", "arguments": {}}]')
    choice = await chat(gateway, tool_choice="required", parallel_tool_calls=parallel)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"
    schema = json.loads(gateway.stations.detokenizer.requests[-1].request.structured_output.json_schema)
    assert [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]] == ["weather", "now"]
    assert schema.get("maxItems") == (None if parallel else 1)


@pytest.mark.parametrize("dialect", [f"http://json-schema.org/draft-0{n}/schema#" for n in (4, 6, 7)] + [None])
@pytest.mark.parametrize(
    "nested", [{"$ref": "#/$defs/Place"}, {"type": "object", "properties": {"at": {"$ref": "#/$defs/Place"}}}]
)
async def test_required_keeps_references_within_the_schema_of_each_function(
    gateway: RunningGateway, nested: dict[str, Any], dialect: str | None
) -> None:
    nested = {**({"$schema": dialect} if dialect else {}), **nested, "$defs": {"Place": SCHEMA}}
    says(gateway, "[]")
    tools = [{"type": "function", "function": {"name": name, "parameters": nested}} for name in ("a.b", "c-1")]
    await chat(gateway, tools=tools, tool_choice="required")
    asked = gateway.stations.detokenizer.requests[-1].request.structured_output
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(asked.json_schema)) == ""


async def test_without_parallel_calls_only_the_first_counts(gateway: RunningGateway) -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    says(gateway, call + call)
    assert len((await chat(gateway))["message"]["tool_calls"]) == 2
    assert len((await chat(gateway, parallel_tool_calls=False))["message"]["tool_calls"]) == 1


BAD = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [NOW, NOW]}, "tools[1].function.name"),
    ({"tools": [NOW] * (MAX_TOOLS + 1)}, "tools"),
    ({"tools": "x"}, "tools"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": "required", "tools": None}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "custom"}}, "tool_choice.type"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format.type"),
]


@pytest.mark.parametrize(("more", "param"), BAD)
async def test_what_is_wrong_is_a_400_that_names_the_field(
    gateway: RunningGateway, more: dict[str, Any], param: str
) -> None:
    response = await gateway.chat(**body_of(more))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not gateway.stations.detokenizer.requests

"""What a request for a response may say, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.common import errors
from services.gateway.api.responses.request import REFUSED
from tests.gateway.api.responses.support import NOW, WEATHER, post, whole
from tests.gateway.support.running import RunningGateway
from tests.gateway.test_errors import failing

module_loop = pytest.mark.asyncio(loop_scope="module")
CALL = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Rome"}'}
CALLED = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    } | fields


CONVERSATIONS: list[tuple[Any, list[dict[str, Any]]]] = [
    ("hi", [message("user", "hi")]),
    ([message("developer", "d"), message("user", "hi")], [message("developer", "d"), message("user", "hi")]),
    ([{"type": "message", **message("user", [{"type": "input_text", "text": "hi"}])}], [message("user", "hi")]),
    (
        [message("user", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])],
        [message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
    ),
    (
        [
            message("user", "q"),
            thought("hm"),
            {
                "id": "msg_1",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
            },
            CALL,
            {**CALL, "call_id": "c2", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        ],
        [
            message("user", "q"),
            {
                **message("assistant", "a"),
                "reasoning_content": "hm",
                "tool_calls": [
                    CALLED,
                    {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                ],
            },
            {**message("tool", "noon"), "tool_call_id": "c2", "name": "now"},
            {**message("tool", "sunny"), "tool_call_id": "c1", "name": "get_weather"},
        ],
    ),
    (
        [CALL, message("assistant", "a"), message("assistant", [{"type": "refusal", "refusal": "no"}]), CALL],
        [
            {**message("assistant", ""), "tool_calls": [CALLED]},
            message("assistant", "a"),
            {**message("assistant", "no"), "tool_calls": [CALLED]},
        ],
    ),
    (
        [thought("a"), thought("b"), thought("", content=None, summary=[{"type": "summary_text", "text": "c"}]), CALL],
        [{**message("assistant", ""), "reasoning_content": "a\nb\nc", "tool_calls": [CALLED]}],
    ),
    (
        [message("assistant", "a"), thought("b"), message("user", "go on")],
        [message("assistant", "a"), {**message("assistant", ""), "reasoning_content": "b"}, message("user", "go on")],
    ),
]


@pytest.mark.parametrize(("given", "told"), CONVERSATIONS)
@module_loop
async def test_items_become_messages(shared_gateway: RunningGateway, given: Any, told: list[dict[str, Any]]) -> None:
    await whole(shared_gateway, input=given)
    assert json.loads(shared_gateway.stations.tokenizer.requests[-1].messages_json) == told
    await whole(shared_gateway, input=given, instructions="Be brief.", chat_template_kwargs={"a": 1})
    request = shared_gateway.stations.tokenizer.requests[-1]
    assert json.loads(request.messages_json) == [message("system", "Be brief."), *told]
    assert json.loads(request.template_kwargs_json) == {"a": 1}


@module_loop
async def test_tools_are_told_in_the_form_of_chats(shared_gateway: RunningGateway) -> None:
    await whole(shared_gateway, tools=[WEATHER, NOW])
    weather = {name: value for name, value in WEATHER.items() if name != "type"}
    told = [{"type": "function", "function": weather}, {"type": "function", "function": {"name": "now"}}]
    assert json.loads(shared_gateway.stations.tokenizer.requests[-1].tools_json) == told
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}
    await whole(shared_gateway, tools=[WEATHER, NOW], tool_choice=allowed)
    assert json.loads(shared_gateway.stations.tokenizer.requests[-1].tools_json) == told[1:]
    await whole(shared_gateway, tools=[WEATHER, NOW], tool_choice="none")
    assert not shared_gateway.stations.tokenizer.requests[-1].HasField("tools_json")


@module_loop
async def test_a_choice_of_tool_is_enforced(shared_gateway: RunningGateway) -> None:
    async def schema(choice: Any) -> Any:
        await post(shared_gateway, tools=[WEATHER, NOW], tool_choice=choice)
        return json.loads(shared_gateway.stations.detokenizer.requests[-1].request.structured_output.json_schema)

    assert await schema({"type": "function", "name": "get_weather"}) == WEATHER["parameters"]
    calls = (await schema("required"))["items"]["anyOf"]
    assert [call["properties"]["name"]["const"] for call in calls] == ["get_weather", "now"]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    (call,) = (await schema(allowed))["items"]["anyOf"]
    assert call["properties"]["name"]["const"] == "now"


@module_loop
async def test_forms_of_the_text(shared_gateway: RunningGateway) -> None:
    async def form(**fields: Any) -> Any:
        await whole(shared_gateway, **fields)
        return shared_gateway.stations.detokenizer.requests[-1].request.structured_output

    assert (await form(text={"format": {"type": "text"}})).WhichOneof("form") is None
    assert (await form(text={"format": {"type": "json_object"}})).json_object
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    given = (await form(text={"format": {"type": "json_schema", "name": "x", "schema": schema}})).json_schema
    assert list(json.loads(given)["properties"]) == ["b", "a"]
    assert (await form(structured_outputs={"regex": "a+"})).regex == "a+"


@module_loop
async def test_parameters_reach_the_engine(shared_gateway: RunningGateway) -> None:
    fields = {"temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.25, "seed": 7, "presence_penalty": 0.5}
    await whole(shared_gateway, **fields, max_output_tokens=9, min_tokens=2, stop=["x"], cache_salt="s", priority=3)
    sent = shared_gateway.stations.detokenizer.requests[-1]
    assert {name: getattr(sent.request.sampling, name) for name in fields} == fields
    assert (sent.request.stop.max_tokens, sent.request.stop.min_tokens) == (9, 2)
    assert (list(sent.stop), sent.request.cache_salt, sent.request.priority) == (["x"], "s", 3)


ITEM = "input[0]"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "invalid_value", "input"),
    ({"input": []}, "invalid_value", "input"),
    ({"input": [3]}, "invalid_value", ITEM),
    ({"input": [{}]}, "invalid_value", f"{ITEM}.type"),
    ({"input": [{"id": "msg_1"}]}, "invalid_value", f"{ITEM}.type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "unsupported_parameter", f"{ITEM}.type"),
    ({"input": [{"type": 3}]}, "unsupported_parameter", f"{ITEM}.type"),
    ({"input": [{"type": "message", "role": "user"}]}, "invalid_value", f"{ITEM}.content"),
    ({"input": [message("robot", "x")]}, "invalid_value", f"{ITEM}.role"),
    ({"input": [message("user", 3)]}, "invalid_value", f"{ITEM}.content"),
    ({"input": [message("user", [{"type": "input_image"}])]}, "unsupported_parameter", f"{ITEM}.content[0].type"),
    ({"input": [message("user", [{"type": "input_text"}])]}, "invalid_value", f"{ITEM}.content[0].text"),
    ({"input": [message("assistant", [{"type": "refusal"}])]}, "invalid_value", f"{ITEM}.content[0].refusal"),
    ({"input": [{**CALL, "arguments": {}}]}, "invalid_value", f"{ITEM}.arguments"),
    ({"input": [{**CALL, "call_id": ""}]}, "invalid_value", f"{ITEM}.call_id"),
    (
        {"input": [CALL, {"type": "function_call_output", "call_id": "c2", "output": ""}]},
        "invalid_value",
        "input[1].call_id",
    ),
    ({"input": [thought("x", encrypted_content="x")]}, "unsupported_parameter", f"{ITEM}.encrypted_content"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "invalid_value", "tools[0].name"),
    ({"tools": [NOW, NOW]}, "invalid_value", "tools[1].name"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ({"tool_choice": "some"}, "invalid_value", "tool_choice"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "name": "x"}}, "invalid_value", "tool_choice.name"),
    ({"tools": [NOW], "tool_choice": {"type": "web_search"}}, "unsupported_parameter", "tool_choice.type"),
    ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "invalid_value", "tool_choice.tools"),
    (
        {"tools": [NOW], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "now"}]}},
        "invalid_value",
        "tool_choice.mode",
    ),
    (
        {
            "tools": [NOW],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
        },
        "invalid_value",
        "tool_choice.tools[0].name",
    ),
    (
        {"tools": [NOW], "tool_choice": "required", "text": {"format": {"type": "json_object"}}},
        "invalid_value",
        "text.format.type",
    ),
    ({"text": {"format": {"type": "xml"}}}, "unsupported_parameter", "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "invalid_value", "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "invalid_value", "text.format.schema"),
    ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "invalid_value", "guided_regex"),
    ({"text": {"verbosity": "low"}}, "unsupported_parameter", "text.verbosity"),
    ({"include": ["file_search_call.results"]}, "unsupported_parameter", "include[0]"),
    ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ({"reasoning": {"effort": "high"}}, "unsupported_parameter", "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "unsupported_parameter", "reasoning.summary"),
    ({"stream_options": {}}, "invalid_value", "stream_options"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "unsupported_parameter",
        "stream_options.include_obfuscation",
    ),
    ({"metadata": {"a": 1}}, "invalid_value", "metadata"),
    ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    ({"max_output_tokens": 1, "min_tokens": 2}, "invalid_value", "min_tokens"),
]


@pytest.mark.parametrize(("fields", "code", "param"), WRONG)
@module_loop
async def test_what_is_wrong_is_named(
    shared_gateway: RunningGateway, fields: dict[str, Any], code: str, param: str
) -> None:
    response = await post(shared_gateway, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param), error
    assert param in error["message"]


ASKED_FOR: dict[str, Any] = {
    "background": True,
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_1",
    "moderation": {},
    "previous_response_id": "resp_1",
    "prompt": {"id": "p"},
    "prompt_cache_retention": "24h",
    "service_tier": "flex",
    "store": True,
    "truncation": "auto",
    "messages": [],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "n": 2,
    "logprobs": True,
    "prompt_logprobs": 1,
    "response_format": {"type": "text"},
    "reasoning_effort": "low",
    "verbosity": "low",
}


@pytest.mark.parametrize("name", REFUSED)
@module_loop
async def test_refused_by_name(shared_gateway: RunningGateway, name: str) -> None:
    response = await post(shared_gateway, **{name: ASKED_FOR[name]})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)
    for value in (None, *REFUSED[name]):
        await whole(shared_gateway, **{name: value})


@pytest.mark.parametrize(
    ("error", "param", "message"),
    [
        (errors.InvalidArgument("messages[1]: no such role", "messages[1]"), "input[0]", "input[0]: no such role"),
        (errors.InvalidArgument("messages[0].content: no", "messages[0].content"), "instructions.content", ""),
        (errors.InvalidArgument("messages: the template says no", "messages"), "input", "input: the template says no"),
        (errors.ContextLengthExceeded("too long", "prompt_ids"), "input", "too long"),
        (errors.TooLarge("too long", "messages_json"), "input", "too long"),
    ],
)
async def test_errors_of_the_tokenizer_name_the_item(
    gateway: RunningGateway, error: errors.PostroadError, param: str, message: str
) -> None:
    async def fail() -> None:
        raise error

    gateway.stations.tokenizer.before = fail
    told = (await post(gateway, input=[{"role": "user", "content": "x"}], instructions="i")).json()["error"]
    assert told["param"] == param
    assert message in told["message"]


async def test_errors_of_the_engine_name_our_fields(gateway: RunningGateway) -> None:
    for error, param in (
        (errors.InvalidArgument("max_tokens: too many", "max_tokens"), "max_output_tokens"),
        (errors.InvalidArgument("bad schema", "structured_output.json_schema"), "text.format.schema"),
    ):
        gateway.stations.detokenizer.script = failing(error)
        form = {"format": {"type": "json_schema", "name": "x", "schema": {}}}
        assert (await post(gateway, text=form)).json()["error"]["param"] == param

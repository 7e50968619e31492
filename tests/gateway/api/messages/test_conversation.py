"""What the template gets of messages in Anthropic's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.api.messages.support import NOW, WEATHER, post, whole
from tests.gateway.support.running import RunningGateway

USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln", "n": 10**30}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}
ASKED: list[Any] = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": [USE]}]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral", "ttl": "1h"}}


async def rendered(gateway: RunningGateway, messages: Any, **fields: Any) -> Any:
    """The messages that the tokenizer got."""
    await whole(gateway, messages=messages, **fields)
    return json.loads(gateway.stations.tokenizer.requests[-1].messages_json)


@pytest.mark.parametrize("content", ["hi", [text("hi")]])
async def test_texts(gateway: RunningGateway, content: Any) -> None:
    assert await rendered(gateway, [{"role": "user", "content": content}]) == [{"role": "user", "content": "hi"}]


async def test_the_system_prompt_comes_first(gateway: RunningGateway) -> None:
    user = {"role": "user", "content": "hi"}
    for system in ("Be kind.", [text("Be kind.")]):
        assert await rendered(gateway, [user], system=system) == [{"role": "system", "content": "Be kind."}, user]
    parts = [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}]
    expected = [{"role": "system", "content": parts}, user]
    assert await rendered(gateway, [user], system=[text("Be kind."), text("Be brief.")]) == expected
    assert await rendered(gateway, [{"role": "system", "content": "Be brief."}, user], system="Be kind.") == expected


async def test_turns_of_one_role_in_a_row_are_one(gateway: RunningGateway) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text("b")]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": []},
        {"role": "user", "content": "d"},
    ]
    assert await rendered(gateway, messages) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]


async def test_calls_and_results(gateway: RunningGateway) -> None:
    other = {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [text("Looking."), USE, other]},
        {
            "role": "user",
            "content": [
                {**RESULT, "content": "sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [text("no"), text("clock")],
                    "is_error": True,
                },
                text("And?"),
            ],
        },
    ]
    function = {"name": "weather", "arguments": {"city": "Köln", "n": 10**30}}
    parts = [{"type": "text", "text": "Error: no"}, {"type": "text", "text": "clock"}]
    assert await rendered(gateway, messages, tools=[WEATHER, NOW]) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": function},
                {"id": "toolu_2", "type": "function", "function": {"name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "toolu_1", "name": "weather"},
        {"role": "tool", "content": parts, "tool_call_id": "toolu_2", "name": "now"},
        {"role": "user", "content": "And?"},
    ]
    tools = json.loads(gateway.stations.tokenizer.requests[-1].tools_json)
    assert tools[0]["function"] == {"name": "weather", "description": "d", "parameters": WEATHER["input_schema"]}
    assert tools[1]["function"] == {"name": "now", "parameters": {"type": "object"}}


async def test_a_result_may_be_empty(gateway: RunningGateway) -> None:
    *_, last = await rendered(gateway, [*ASKED, {"role": "user", "content": [RESULT]}])
    assert last == {"role": "tool", "content": "", "tool_call_id": "toolu_1", "name": "weather"}


async def test_thinking_of_earlier_turns(gateway: RunningGateway) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thinking, redacted, text("b")]},
        {"role": "user", "content": "c"},
    ]
    assert (await rendered(gateway, messages))[1] == {"role": "assistant", "content": "b", "reasoning_content": "Hm."}


def a_user(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


def an_assistant(*blocks: Any) -> list[Any]:
    return [*a_user(text("a")), {"role": "assistant", "content": list(blocks)}, *a_user(text("b"))]


PLACE = "messages[0].content[0]"
BAD: list[tuple[str, Any, str]] = [
    ("invalid_value", None, "messages"),
    ("invalid_value", "hi", "messages"),
    ("invalid_value", [], "messages"),
    ("invalid_value", [3], "messages[0]"),
    ("invalid_value", [{"content": "x"}], "messages[0].role"),
    ("invalid_value", [{"role": "tool", "content": "x"}], "messages[0].role"),
    ("invalid_value", [{"role": "user"}], "messages[0].content"),
    ("invalid_value", [{"role": "user", "content": 3}], "messages[0].content"),
    ("invalid_value", a_user({"text": "x"}), f"{PLACE}.type"),
    ("invalid_value", a_user({"type": "text"}), f"{PLACE}.text"),
    ("invalid_value", a_user(USE), f"{PLACE}.type"),
    ("invalid_value", a_user({"type": "thinking", "thinking": "x"}), f"{PLACE}.type"),
    ("invalid_value", a_user(RESULT), f"{PLACE}.tool_use_id"),
    ("invalid_value", an_assistant(RESULT), "messages[1].content[0].type"),
    ("invalid_value", an_assistant({**USE, "input": [1]}), "messages[1].content[0].input"),
    ("invalid_value", an_assistant({**USE, "id": ""}), "messages[1].content[0].id"),
    ("invalid_value", [{"role": "system", "content": [USE]}], f"{PLACE}.type"),
    (
        "unsupported_parameter",
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "messages[1].role",
    ),
    ("unsupported_parameter", a_user({"type": "image", "source": {}}), f"{PLACE}.type"),
    ("unsupported_parameter", a_user(text("x"), {"type": "document", "source": {}}), "messages[0].content[1].type"),
    ("unsupported_parameter", an_assistant({"type": "server_tool_use"}), "messages[1].content[0].type"),
    (
        "unsupported_parameter",
        [*ASKED, *a_user({**RESULT, "content": [{"type": "image", "source": {}}]})],
        "messages[2].content[0].content[0].type",
    ),
]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_unusable_messages_are_refused_by_their_place(gateway: RunningGateway, path: str) -> None:
    for code, messages, param in BAD:
        response = await post(gateway, path, messages=messages)
        assert response.status_code == 400, messages
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["details"] == {"error_code": code, "param": param}
        assert param in error["message"]
    assert not gateway.stations.tokenizer.requests


@pytest.mark.parametrize("given", [b'"\xff"', b'"\\ud83d"'])
async def test_a_tool_s_input_must_be_text(gateway: RunningGateway, given: bytes) -> None:
    body = json.dumps({"max_tokens": 1, "messages": an_assistant({**USE, "input": {"a": "MARK"}})}).encode()
    response = await gateway.http.post("/v1/messages", content=body.replace(b'"MARK"', given))
    assert response.status_code == 400

"""What the stations get of a message's parameters, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import ContextLengthExceeded, EngineFailed, InvalidArgument, NotReady, QueueFull
from services.gateway.api.tool_use import MAX_TOOLS
from tests.gateway.api.messages.support import NOW, SCHEMA, WEATHER, post, whole
from tests.gateway.api.test_tools import says
from tests.gateway.support.running import RunningGateway
from tests.gateway.support.stations import first
from tests.gateway.test_api_keys import ALICE, guarded_gateway
from tests.gateway.test_errors import failing


async def test_parameters_reach_the_engine(gateway: RunningGateway) -> None:
    await whole(
        gateway,
        model="default",
        max_tokens=7,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        stop_sequences=["a", "b"],
        seed=-1,
        priority=5,
        cache_salt="s",
        metadata={"user_id": "joe"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
    )
    given = gateway.stations.detokenizer.requests[-1]
    request, sampling = given.request, given.request.sampling
    assert request.stop.max_tokens == 7
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.25, 3, 2**64 - 1)
    assert (list(given.stop), request.priority, request.cache_salt) == (["a", "b"], 5, "s")
    await whole(gateway)
    left_out = gateway.stations.detokenizer.requests[-1].request.sampling
    assert not any(left_out.HasField(name) for name in ("temperature", "top_p", "top_k", "seed"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025},
            {"enable_thinking": True, "thinking": True},
        ),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
    ],
)
async def test_thinking_is_the_template_s(gateway: RunningGateway, fields: Any, expected: Any) -> None:
    await whole(gateway, **fields)
    request = gateway.stations.tokenizer.requests[-1]
    assert (json.loads(request.template_kwargs_json) if request.HasField("template_kwargs_json") else None) == expected


async def test_an_output_format_is_enforced(gateway: RunningGateway) -> None:
    await whole(gateway, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    asked = gateway.stations.detokenizer.requests[-1].request.structured_output
    assert json.loads(asked.json_schema) == SCHEMA


@pytest.mark.parametrize(
    ("choice", "schema"),
    [
        ({"type": "tool", "name": "weather"}, SCHEMA),
        ({"type": "auto"}, None),
        ({"type": "none"}, None),
    ],
)
async def test_tool_choice(gateway: RunningGateway, choice: Any, schema: Any) -> None:
    await whole(gateway, tools=[WEATHER, NOW], tool_choice=choice)
    asked = gateway.stations.detokenizer.requests[-1].request
    assert (json.loads(asked.structured_output.json_schema) if asked.HasField("structured_output") else None) == schema
    assert gateway.stations.tokenizer.requests[-1].HasField("tools_json") == (choice["type"] != "none")


@pytest.mark.parametrize("single", [True, False])
async def test_any_tool(gateway: RunningGateway, single: bool) -> None:
    says(gateway, '[{"name": "now", "arguments": {}}]')
    choice = {"type": "any", "disable_parallel_tool_use": single}
    await whole(gateway, tools=[WEATHER, NOW], tool_choice=choice)
    schema = json.loads(gateway.stations.detokenizer.requests[-1].request.structured_output.json_schema)
    assert [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]] == ["weather", "now"]
    assert schema.get("maxItems") == (1 if single else None)


FORMAT = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
ENABLED = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
SERVER_TOOL = {"type": "web_search_20250305", "name": "web_search"}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("invalid_value", {"max_tokens": ...}, "max_tokens"),
    ("invalid_value", {"max_tokens": 0}, "max_tokens"),
    ("invalid_value", {"temperature": 1.5}, "temperature"),
    ("invalid_value", {"top_p": 0}, "top_p"),
    ("invalid_value", {"top_k": -1}, "top_k"),
    ("invalid_value", {"stop_sequences": "x"}, "stop_sequences"),
    ("invalid_value", {"stop_sequences": ["x", ""]}, "stop_sequences[1]"),
    ("invalid_value", {"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ("invalid_value", {"stop_sequences": ["x" * 1025]}, "stop_sequences[0]"),
    ("invalid_value", {"cache_salt": "é" * 129}, "cache_salt"),
    ("invalid_value", {"system": 3}, "system"),
    ("unsupported_parameter", {"system": [{"type": "image"}]}, "system[0].type"),
    ("unsupported_parameter", {"container": "c"}, "container"),
    ("unsupported_parameter", {"mcp_servers": [{}]}, "mcp_servers"),
    ("unsupported_parameter", {"service_tier": "priority"}, "service_tier"),
    ("unsupported_parameter", {"speed": "fast"}, "speed"),
    ("thread_unsupported_request", {"thread": {"type": "create"}}, "thread"),
    ("unsupported_parameter", {"thinking": {"type": "between_tools"}}, "thinking.type"),
    ("invalid_value", {"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ("invalid_value", {"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens"),
    ("invalid_value", {**ENABLED, "max_tokens": 1024}, "thinking.budget_tokens"),
    ("invalid_value", {**ENABLED, "tools": [NOW], "tool_choice": {"type": "any"}}, "tool_choice.type"),
    ("invalid_value", {"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
    ("invalid_value", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ("invalid_value", {"output_config": {"effort": "most"}}, "output_config.effort"),
    ("invalid_value", {**FORMAT, "tools": [NOW], "tool_choice": {"type": "any"}}, "output_config.format.schema"),
    ("unsupported_parameter", {"tools": [SERVER_TOOL]}, "tools[0].type"),
    ("invalid_value", {"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ("invalid_value", {"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ("invalid_value", {"tools": [NOW, NOW]}, "tools[1].name"),
    ("invalid_value", {"tools": [NOW] * (MAX_TOOLS + 1)}, "tools"),
    ("invalid_value", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("invalid_value", {"tools": [NOW], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    ("unsupported_parameter", {"tools": [NOW], "tool_choice": {"type": "required"}}, "tool_choice.type"),
    ("invalid_value", {"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
]


async def test_what_is_wrong_is_a_400_that_names_the_field(gateway: RunningGateway) -> None:
    for code, fields, param in BAD:
        response = await post(gateway, **fields)
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert error["details"] == {"error_code": code, "param": param}
        assert param in error["message"]
    assert not gateway.stations.tokenizer.requests


async def test_fields_headers_and_queries_that_change_nothing(gateway: RunningGateway) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-2025-01-01"}
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": "hi", "name": "joe"}], "unheard_of": 1}
    assert (await gateway.http.post("/v1/messages?beta=true", json=body, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "kind", "param"),
    [
        (ContextLengthExceeded("too long: 5000 of 2048", "prompt_ids"), 400, "invalid_request_error", "messages"),
        (InvalidArgument("odd", "structured_output.json_schema"), 400, "invalid_request_error", SCHEMA),
        (InvalidArgument("tools: odd", "tools_json"), 400, "invalid_request_error", "tools"),
        (QueueFull("full"), 429, "rate_limit_error", None),
        (EngineFailed("failed"), 503, "overloaded_error", None),
        (NotReady("loading"), 503, "overloaded_error", None),
        (ValueError("secret"), 500, "api_error", None),
    ],
)
async def test_errors_of_the_stations(gateway: RunningGateway, error: Any, status: int, kind: str, param: Any) -> None:
    gateway.stations.detokenizer.script = failing(error)
    response = await post(gateway, **(FORMAT if param is SCHEMA else {}))
    assert response.status_code == status
    answer = response.json()
    assert answer["request_id"] == response.headers["request-id"]
    assert answer["error"]["type"] == kind
    assert answer["error"]["details"]["param"] == ("output_config.format.schema" if param is SCHEMA else param)
    assert "secret" not in response.text
    await gateway.assert_idle()


async def test_fieldbug_27_an_error_in_mid_stream_is_the_last_event(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = failing(EngineFailed("the step failed"), first("some"))
    response = await post(gateway, stream=True)
    assert response.status_code == 200
    last = response.text.removesuffix("\n\n").split("\n\n")[-1]
    name, data = last.split("\n")
    assert name == "event: error"
    answer = json.loads(data.removeprefix("data: "))
    assert (answer["type"], answer["error"]["type"]) == ("error", "overloaded_error")
    assert answer["request_id"] == response.headers["request-id"]
    await gateway.assert_idle()


async def test_methods_and_models(gateway: RunningGateway) -> None:
    wrong = await gateway.http.get("/v1/messages")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    missing = await post(gateway, model="claude")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    too_large = await gateway.http.post("/v1/messages", content=b"x" * (8 * 1024 * 1024 + 1))
    assert (too_large.status_code, too_large.json()["error"]["type"]) == (413, "request_too_large")


async def test_tokens_are_counted(gateway: RunningGateway) -> None:
    fields: Any = {"max_tokens": ..., "system": "Be kind.", "tools": [WEATHER], "thinking": {"type": "disabled"}}
    counted = await post(gateway, "/v1/messages/count_tokens", **fields)
    assert counted.status_code == 200
    asked = gateway.stations.tokenizer.requests[-1]
    assert asked.HasField("tools_json")
    assert json.loads(asked.template_kwargs_json)["enable_thinking"] is False
    answer = await whole(gateway, **{**fields, "max_tokens": 5})
    assert counted.json() == {"input_tokens": len(gateway.stations.detokenizer.requests[-1].request.prompt_ids)}
    assert answer["type"] == "message"
    refused = await post(gateway, "/v1/messages/count_tokens", speed="fast")
    assert refused.json()["error"]["details"]["param"] == "speed"


async def test_the_cache_salt_of_an_api_key_holds(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        body = {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        for headers in ({"x-api-key": ALICE}, {"authorization": f"Bearer {ALICE}"}):
            assert (await gateway.http.post("/v1/messages", json=body, headers=headers)).status_code == 200
        salts = {request.request.cache_salt for request in gateway.stations.detokenizer.requests}
        assert len(salts) == 1
        assert salts != {""}

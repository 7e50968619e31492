from __future__ import annotations

import json
from typing import Any

import pytest

from services.common.errors import ContextLengthExceeded
from services.pb.postroad.v1 import common_pb2
from tests.gateway.support.running import RunningGateway, events
from tests.gateway.support.stations import delta, end, first


async def test_fieldbug_31_a_whole_answer_is_json_with_finish_reason_and_usage(gateway: RunningGateway) -> None:
    response = await gateway.chat(stream=False)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "smol"
    assert answer["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_fieldbug_31_length_is_told_apart_from_stop(gateway: RunningGateway) -> None:
    async def cut(request: Any, context: Any) -> Any:
        yield first("x")
        yield end("", reason=common_pb2.FINISH_REASON_LENGTH)

    gateway.stations.detokenizer.script = cut
    answer = (await gateway.chat()).json()
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_fieldbug_35_role_once_first_null_finish_reasons_and_an_empty_finishing_delta(
    gateway: RunningGateway,
) -> None:
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": " world"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_fieldbug_32_the_last_chunk_of_include_usage_has_no_choices(gateway: RunningGateway) -> None:
    response = await gateway.chat(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events(response.text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 7
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_text_of_any_kind_survives_the_event_form(gateway: RunningGateway) -> None:
    texts = ['line\nend\r\n\n"quoted"\\', "data: [DONE]", "🦊\u2028\u2029é\x00\x7f", "</script>"]

    async def odd(request: Any, context: Any) -> Any:
        yield first(texts[0])
        for text in texts[1:]:
            yield delta(text)
        yield end()

    gateway.stations.detokenizer.script = odd
    chunks = events((await gateway.chat(stream=True)).text)[1:-2]
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == texts
    assert (await gateway.chat()).json()["choices"][0]["message"]["content"] == "".join(texts)


async def test_a_request_that_ends_with_its_first_token_has_role_and_finish(gateway: RunningGateway) -> None:
    async def nothing(request: Any, context: Any) -> Any:
        yield end("", completion_tokens=1)

    gateway.stations.detokenizer.script = nothing
    role, finish, done = events((await gateway.chat(stream=True)).text)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"


async def test_messages_reach_the_template_with_all_their_fields(gateway: RunningGateway) -> None:
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "joe"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
    ]
    body = {"messages": messages, "chat_template_kwargs": {"deep": {"x": [1]}}, "add_generation_prompt": False}
    assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
    [request] = gateway.stations.tokenizer.requests
    assert json.loads(request.messages_json) == messages
    assert json.loads(request.template_kwargs_json) == {"deep": {"x": [1]}}
    assert request.HasField("add_generation_prompt")
    assert not request.add_generation_prompt


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([1], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "a"}, {"role": 3, "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ],
)
async def test_unusable_messages_are_refused_by_their_place(gateway: RunningGateway, messages: Any, param: str) -> None:
    response = await gateway.http.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_absent_messages_are_named(gateway: RunningGateway) -> None:
    response = await gateway.http.post("/v1/chat/completions", json={})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("given", ["max_tokens", "max_completion_tokens"])
async def test_errors_name_the_field_that_the_client_gave(gateway: RunningGateway, given: str) -> None:
    async def too_long(request: Any, context: Any) -> Any:
        raise ContextLengthExceeded("too long", "max_tokens")
        yield

    gateway.stations.detokenizer.script = too_long
    error = (await gateway.chat(**{given: 99999})).json()["error"]
    assert (error["param"], error["code"]) == (given, "context_length_exceeded")
    error = (await gateway.chat(**{given: 4, "min_tokens": 5})).json()["error"]
    assert (error["param"], error["message"]) == ("min_tokens", f"min_tokens must be at most {given}, 4")


async def test_template_variables_may_be_32_levels_deep(gateway: RunningGateway) -> None:
    for levels in (1, 32):
        value: Any = {}
        for _ in range(levels - 1):
            value = {"a": value}
        assert (await gateway.chat(chat_template_kwargs=value)).status_code == 200
        [*_, request] = gateway.stations.tokenizer.requests
        assert json.loads(request.template_kwargs_json) == value


async def test_max_completion_tokens_wins_over_max_tokens(gateway: RunningGateway) -> None:
    await gateway.chat(max_tokens=5, max_completion_tokens=7)
    await gateway.chat(max_tokens=5)
    await gateway.chat()
    limits = [request.request.stop for request in gateway.stations.detokenizer.requests]
    assert [limit.max_tokens for limit in limits[:2]] == [7, 5]
    assert not limits[2].HasField("max_tokens")

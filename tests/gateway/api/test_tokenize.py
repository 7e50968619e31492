from __future__ import annotations

import json
from typing import Any

import pytest

from services.common.errors import InvalidArgument, NotReady
from tests.gateway.support.running import RunningGateway


async def test_a_prompt(gateway: RunningGateway) -> None:
    response = await gateway.http.post("/tokenize", json={"prompt": "ab", "model": "smol"})
    assert response.json() == {"count": 2, "max_model_len": 2048, "tokens": [97, 98]}
    assert response.headers["x-request-id"]


async def test_an_empty_prompt_has_no_tokens(gateway: RunningGateway) -> None:
    assert (await gateway.http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []


async def test_fieldbug_11_messages_count_what_a_chat_is_charged(gateway: RunningGateway) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = (await gateway.http.post("/tokenize", json={"messages": messages})).json()["tokens"]
    await gateway.chat("hi")
    [request] = gateway.stations.detokenizer.requests
    assert list(request.request.prompt_ids) == tokens


async def test_tools_reach_the_template(gateway: RunningGateway) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [{"role": "user", "content": "hi"}]
    for given in (tools, [], None):
        body = {"messages": messages, "tools": given}
        assert (await gateway.http.post("/tokenize", json=body)).status_code == 200
    with_tools, *without = gateway.stations.tokenizer.requests
    assert json.loads(with_tools.tools_json) == tools
    assert not any(request.HasField("tools_json") for request in without)


async def test_detokenize(gateway: RunningGateway) -> None:
    for fields, skip in (({}, False), ({"skip_special_tokens": True, "model": "smol"}, True)):
        response = await gateway.http.post("/detokenize", json={"tokens": [104, 105], **fields})
        assert response.json() == {"prompt": "hi"}
        assert gateway.stations.detokenizer.decoded[-1].skip_special_tokens == skip
    assert (await gateway.http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tokens"),
        ({"tokens": None}, "tokens"),
        ({"tokens": [1, -1]}, "tokens[1]"),
        ({"tokens": "hi"}, "tokens"),
        ({"tokens": [1], "model": "x"}, "model"),
    ],
)
async def test_refusals_of_detokenize(gateway: RunningGateway, body: dict[str, Any], param: str) -> None:
    response = await gateway.http.post("/detokenize", json=body)
    assert response.status_code in (400, 404)
    assert param in response.json()["error"]["message"]
    assert not gateway.stations.detokenizer.decoded


async def test_fieldbug_13_an_id_out_of_vocabulary_is_named_in_the_words_of_the_api(gateway: RunningGateway) -> None:
    async def refuse() -> None:
        raise InvalidArgument("ids: 7 is too much", "ids")

    gateway.stations.detokenizer.before_decode = refuse
    error = (await gateway.http.post("/detokenize", json={"tokens": [7]})).json()["error"]
    assert (error["param"], error["message"]) == ("tokens", "tokens: 7 is too much")
    await gateway.assert_idle()


async def test_a_passing_failure_of_the_detokenizer_is_tried_once_more(gateway: RunningGateway) -> None:
    async def fail_once() -> None:
        gateway.stations.detokenizer.before_decode = None
        raise NotReady("not yet")

    gateway.stations.detokenizer.before_decode = fail_once
    assert (await gateway.http.post("/detokenize", json={"tokens": [104]})).json() == {"prompt": "h"}
    assert len(gateway.stations.detokenizer.decoded) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "return_token_strs": True}, "return_token_strs"),
        ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ({"prompt": "a", "chat_template": "x"}, "chat_template"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}] * 129}, "tools"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [1]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools[0].type"),
        ({"prompt": "x", "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "a", "model": "x"}, "model"),
    ],
)
async def test_refusals(gateway: RunningGateway, body: dict[str, Any], param: str) -> None:
    response = await gateway.http.post("/tokenize", json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param

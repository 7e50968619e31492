from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("body", "param"),
    [
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

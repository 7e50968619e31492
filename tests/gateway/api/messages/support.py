"""Requests to /v1/messages, and a stream's events put together as a client does it."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic_core import from_json

from tests.gateway.support.running import RunningGateway, named_events

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "weather", "description": "d", "input_schema": SCHEMA}
NOW: Any = {"name": "now", "input_schema": {"type": "object"}}


async def post(gateway: RunningGateway, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], **fields}
    given = {name: value for name, value in body.items() if value is not ...}
    return await gateway.http.post(path, json=given)


async def whole(gateway: RunningGateway, **fields: Any) -> dict[str, Any]:
    response = await post(gateway, **fields)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def streamed(gateway: RunningGateway, **fields: Any) -> list[dict[str, Any]]:
    response = await post(gateway, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return named_events(response.text)


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream. Checks the order of its events."""
    start, ping, *middle, last, stop = events
    assert (start["type"], ping) == ("message_start", {"type": "ping"})
    assert (last["type"], stop) == ("message_delta", {"type": "message_stop"})
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    content, is_open = message["content"], False
    for event in middle:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(content)
            content.append(event["content_block"])
            is_open, arguments = True, ""
            continue
        assert is_open
        assert event["index"] == len(content) - 1
        block = content[-1]
        if event["type"] == "content_block_stop":
            is_open = False
            continue
        match event["delta"]:
            case {"type": "text_delta", "text": text}:
                block["text"] += text
            case {"type": "thinking_delta", "thinking": thinking}:
                block["thinking"] += thinking
            case {"type": "signature_delta", "signature": signature}:
                block["signature"] = signature
            case {"type": "input_json_delta", "partial_json": piece}:
                arguments += piece
                block["input"] = from_json(arguments, allow_partial=True)
            case _:
                raise AssertionError(event)
    assert not is_open
    return {**message, **last["delta"], "usage": last["usage"]}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """What two answers to the same request have in common."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": None, "content": content}

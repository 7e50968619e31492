"""Requests to /v1/responses, and a stream's events put together as a client does it."""

from __future__ import annotations

from typing import Any

import httpx

from tests.gateway.support.running import RunningGateway, named_events
from tests.support.answer_schemas import EVENTS, WHOLE, check_answer

OPERATION = "POST /v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
NOW: Any = {"type": "function", "name": "now"}


async def post(gateway: RunningGateway, **fields: Any) -> httpx.Response:
    return await gateway.http.post("/v1/responses", json={"input": "hi", **fields})


async def whole(gateway: RunningGateway, **fields: Any) -> dict[str, Any]:
    response = await post(gateway, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    check_answer(OPERATION, WHOLE, answer)
    return answer


async def streamed(gateway: RunningGateway, **fields: Any) -> list[dict[str, Any]]:
    response = await post(gateway, stream=True, **fields)
    assert response.status_code == 200, response.text
    events = named_events(response.text)
    for event in events:
        check_answer(OPERATION, EVENTS, event)
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a stream's last event has. Checks the order of all events, and that the output which they tell
    piece by piece is that of the response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, in_progress, *middle, last = events
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == in_progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert last["type"] == f"response.{last['response']['status']}"
    output: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None  # that is open
    for event in middle:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert item is None
            item = event["item"]
            assert item["status"] == "in_progress"
            output.append(item)
        assert item is not None
        assert event["output_index"] == len(output) - 1
        assert event.get("item_id", item["id"]) == item["id"]
        _apply(kind, event, item)
        if kind == "output_item.done":
            assert {**item, "status": event["item"]["status"]} == event["item"]
            output[-1], item = event["item"], None
    assert item is None
    assert output == last["response"]["output"]
    response: dict[str, Any] = last["response"]
    return response


def _apply(kind: str, event: dict[str, Any], item: dict[str, Any]) -> None:
    match kind:
        case "content_part.added":
            assert event["content_index"] == len(item["content"]) == 0
            item["content"].append(event["part"])
        case "output_text.delta" | "reasoning_text.delta":
            item["content"][0]["text"] += event["delta"]
            if "logprobs" in event:
                item["content"][0]["logprobs"] += event["logprobs"]
        case "output_text.done" | "reasoning_text.done":
            assert event["text"] == item["content"][0]["text"]
            assert event.get("logprobs", []) == item["content"][0].get("logprobs", [])
        case "content_part.done":
            assert event["part"] == item["content"][0]
        case "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        case "function_call_arguments.done":
            assert (event["name"], event["arguments"]) == (item["name"], item["arguments"])
        case _:
            assert kind in ("output_item.added", "output_item.done")


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to the same request have in common: not their ids and times."""
    output = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")} for item in response["output"]
    ]
    return {**response, "output": output} | dict.fromkeys(("id", "created_at", "completed_at", "timings"))

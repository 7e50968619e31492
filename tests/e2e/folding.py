"""The chunks of a stream put together to the answer that a request without `stream` gets.

It is strict: a field that it does not know, a chunk after a choice's end, or a head that changes is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

CALL_ID = re.compile(r"call_[0-9a-f]{24}")


def folded(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer of a stream's events, in the form of `comparable`. The stream was asked for its usage."""
    head: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in events:
        assert usage is None or event["usage"], "the last event has the usage"
        usage = event["usage"]
        for chunk in event["choices"]:
            _add(choices.setdefault(chunk["index"], {"index": chunk["index"]}), chunk)
        same = {name: value for name, value in event.items() if name not in ("choices", "usage")}
        assert head in ({}, same), "a stream's chunks have one head"
        head = same
    head["object"] = head["object"].removesuffix(".chunk")
    return comparable({**head, "choices": [choices[index] for index in sorted(choices)], "usage": usage})


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """A whole answer without what is another in each request: its id and time, and the ids of calls."""
    assert answer.pop("id")
    assert answer.pop("created") > 1_700_000_000
    for choice in answer["choices"]:
        if (message := choice.get("message")) is not None:
            _simplify(message)
    return answer


def _simplify(message: dict[str, Any]) -> None:
    if message.get("refusal") is None:  # a stream leaves it out
        message.pop("refusal", None)
    calls = message.get("tool_calls", [])
    ids = [call.pop("id") for call in calls]
    assert all(map(CALL_ID.fullmatch, ids)), ids
    assert len(set(ids)) == len(ids)
    if calls and not message["content"]:  # a stream begins with an empty text, whatever follows
        message["content"] = None


def _add(choice: dict[str, Any], chunk: dict[str, Any]) -> None:
    assert choice.get("finish_reason") is None, "nothing comes after a choice's end"
    assert set(chunk) == {"index", "delta" if "delta" in chunk else "text", "logprobs", "finish_reason"}
    if "delta" in chunk:
        _add_delta(choice.setdefault("message", {}), chunk["delta"])
    else:
        choice["text"] = choice.get("text", "") + chunk["text"]
    choice["logprobs"] = _joined(choice.get("logprobs"), chunk["logprobs"])
    choice["finish_reason"] = chunk["finish_reason"]


def _joined(known: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    """The arrays of `logprobs` one after another; what is no array is null."""
    if known is None or more is None:
        return known or more
    assert set(known) == set(more)
    return {name: None if value is None else value + more[name] for name, value in known.items()}


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    if not message:
        assert delta == {"role": "assistant", "content": ""}, "the first chunk of a chat names the role"
        message.update(delta)
        return
    for name, value in delta.items():
        match name:
            case "content" | "reasoning_content":
                message[name] = message.get(name, "") + value
            case "tool_calls":
                for part in value:
                    _add_call(message.setdefault(name, []), part)
            case _:
                raise AssertionError(f"{name} is no field of a delta")


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    if part["index"] == len(calls):
        assert set(part) == {"index", "id", "type", "function"}, "a call begins with all its fields"
        calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
    else:
        assert set(part) == {"index", "function"}
        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]

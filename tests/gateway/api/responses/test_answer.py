"""Responses, whole and as streams: both are as described, and tell the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.common import errors
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2
from tests.gateway.api.responses.support import NOW, OPERATION, WEATHER, comparable, put_together, streamed, whole
from tests.gateway.support.running import RunningGateway, named_events
from tests.gateway.support.stations import delta, end, first
from tests.gateway.test_errors import failing
from tests.support.answer_schemas import EVENTS, check_answer

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
THOUGHT = "<think>\nWhich city?\n</think>\n\n"
FORMATS = {"tool_call_format": "hermes", "reasoning_format": "think"}

TEXTS = {
    "nothing": ("", []),
    "text": ("Hello wörld", ["message"]),
    "thought": (f"{THOUGHT}Paris.", ["reasoning", "message"]),
    "call": (CALL, ["function_call"]),
    "calls": (f"{CALL}\n{CALL}", ["function_call", "function_call"]),
    "all": (f"{THOUGHT}Let me look.\n{CALL}", ["reasoning", "message", "function_call"]),
    "text after a call": (f"{CALL}\nand then", ["function_call", "message"]),
    "thought alone": ("<think>\nHm", ["reasoning"]),
}


def token(text: str, offset: int) -> detokenizer_pb2.TextToken:
    return detokenizer_pb2.TextToken(id=ord(text), token=text, bytes=text.encode(), text_offset=offset, logprob=-0.5)


def says(gateway: RunningGateway, text: str, step: int = 1, reason: Any = common_pb2.FINISH_REASON_STOP) -> None:
    """So many characters at a time; each is a token, and so is the end."""

    async def script(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            message = first(piece) if start == 0 else delta(piece)
            message.tokens.extend(token(char, start + index) for index, char in enumerate(piece))
            yield message
        last = end(reason=reason)
        last.tokens.append(detokenizer_pb2.TextToken(id=0, token="", text_offset=len(text), logprob=-1))
        yield last

    gateway.stations.detokenizer.script = script


@pytest.mark.parametrize("reason", [common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH])
@pytest.mark.parametrize("name", TEXTS)
async def test_a_stream_tells_what_the_whole_response_does(gateway: RunningGateway, name: str, reason: Any) -> None:
    text, kinds = TEXTS[name]
    gateway.stations.tokenizer.formats = FORMATS
    for include, step in (([], 7), (["message.output_text.logprobs"], 3)):
        says(gateway, text, step, reason)
        asked: dict[str, Any] = {"tools": [WEATHER, NOW], "include": include, "timings": True}
        answer = await whole(gateway, **asked)
        assert comparable(put_together(await streamed(gateway, **asked))) == comparable(answer)
        assert [item["type"] for item in answer["output"]] == (kinds or ["message"])
        cut = reason == common_pb2.FINISH_REASON_LENGTH
        assert answer["status"] == answer["output"][-1]["status"] == ("incomplete" if cut else "completed")
        assert answer["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
        assert {item["status"] for item in answer["output"][:-1]} <= {"completed"}


async def test_log_probabilities(gateway: RunningGateway) -> None:
    says(gateway, "Hé!", step=2)
    answer = await whole(gateway, include=["message.output_text.logprobs"], top_logprobs=3)
    tokens = answer["output"][0]["content"][0]["logprobs"]
    assert [(one["token"], one["bytes"], one["logprob"]) for one in tokens] == [
        ("H", [72], -0.5),
        ("é", [195, 169], -0.5),
        ("!", [33], -0.5),
        ("", [], -1.0),
    ]
    assert gateway.stations.detokenizer.requests[-1].request.logprobs == 3
    assert answer["top_logprobs"] == 3
    assert (await whole(gateway))["output"][0]["content"][0]["logprobs"] == []
    assert not gateway.stations.detokenizer.requests[-1].request.HasField("logprobs")


async def test_what_the_request_asked_for_is_in_the_response(gateway: RunningGateway) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 7,
        "max_tool_calls": 2,
        "temperature": 0.5,
        "top_p": 0.25,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "user": "me",
        "safety_identifier": "someone",
        "prompt_cache_key": "key",
        "tools": [WEATHER],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
        "text": {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True, "description": "d"}},
        "reasoning": {"summary": "auto"},
    }
    answer = await whole(gateway, **asked)
    assert {name: answer[name] for name in asked} == asked | {
        "text": {**asked["text"], "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": "auto"},
    }
    assert '"b":{"type":"integer"},"a"' in json.dumps(answer["text"], separators=(",", ":"))
    defaults = await whole(gateway)
    assert {name: defaults.get(name, "absent") for name in asked} == {
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "metadata": {},
        "parallel_tool_calls": True,
        "user": "absent",
        "safety_identifier": "absent",
        "prompt_cache_key": "absent",
        "tools": [],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None},
    }
    assert (defaults["store"], defaults["service_tier"], defaults["truncation"]) == (False, "default", "disabled")


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (errors.EngineLost("gone"), "server_error", "engine_lost"),
        (errors.QueueFull("full"), "rate_limit_exceeded", "queue_full"),
        (errors.InvalidArgument("prompt_ids: odd", "prompt_ids"), "invalid_prompt", "invalid_value"),
    ],
)
async def test_an_error_in_mid_stream(
    gateway: RunningGateway, error: errors.PostroadError, code: str, told: str
) -> None:
    gateway.stations.tokenizer.formats = FORMATS
    gateway.stations.detokenizer.script = failing(error, first(f"{THOUGHT}Par"))
    response = await gateway.http.post("/v1/responses", json={"input": "hi", "stream": True})
    *_, event, failed = events = named_events(response.text)
    for one in events:
        check_answer(OPERATION, EVENTS, one)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert (event["type"], event["code"], event["error"]["code"]) == ("error", told, told)
    assert event["param"] == ("input" if error.param else None)
    answer = failed["response"]
    assert (failed["type"], answer["status"]) == ("response.failed", "failed")
    assert answer["error"] == {"code": code, "message": event["message"]}
    assert [item["status"] for item in answer["output"]] == ["completed", "incomplete"]
    assert answer["output"][1]["content"][0]["text"] == "Par"
    await gateway.assert_idle()


async def test_reasoning_is_counted(gateway: RunningGateway) -> None:
    gateway.stations.tokenizer.formats = FORMATS
    says(gateway, f"{THOUGHT}Paris.")
    usage = (await whole(gateway))["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] >= 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]

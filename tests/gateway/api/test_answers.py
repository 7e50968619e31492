"""Streams and whole answers are built from the same parts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.gateway.api.answers import AnswerHead, ChoicesAnswer, Summary
from services.gateway.api.chat import ChatForm, ChatRequest
from services.gateway.api.choices import Update, WholeChoice, WholeReasoning, WholeText, WholeToolCall
from services.gateway.deltas import Usage
from services.gateway.parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart
from tests.gateway.support.running import events

PARTS: list[Part] = [
    Reasoning("let me "),
    Reasoning("think"),
    Content("I call "),
    Content("two"),
    ToolCallStart(0, "call_a", "first"),
    ToolCallArguments(0, '{"x"'),
    ToolCallArguments(0, ": 1}"),
    ToolCallStart(1, "call_b", "second"),
    ToolCallArguments(1, "{}"),
]
WHOLE = {
    "role": "assistant",
    "content": "I call two",
    "refusal": None,
    "reasoning_content": "let me think",
    "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "first", "arguments": '{"x": 1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "second", "arguments": "{}"}},
    ],
}
SUMMARY = Summary(Usage(1, 2, 0), None)


def chat_answer() -> ChoicesAnswer:
    return ChoicesAnswer(
        AnswerHead("id", 1, "smol", 1), include_usage=False, form=ChatForm(ChatRequest(messages=msgspec.Raw(b"[]")))
    )


def put_together(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """What OpenAI's clients make of a stream's deltas."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name in ("role", "content", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            known = calls.setdefault(call["index"], {"function": {"name": "", "arguments": ""}})
            known |= {name: call[name] for name in ("id", "type") if name in call}
            for name, text in call["function"].items():
                known["function"][name] += text
    return message | {"tool_calls": [calls[index] for index in sorted(calls)]}


@pytest.mark.parametrize("cut", range(len(PARTS) + 1))
def test_a_stream_tells_what_the_whole_answer_does(cut: int) -> None:
    updates = [Update(0, PARTS[:cut]), Update(0, PARTS[cut:], "tool_calls")]
    answer, whole = chat_answer(), WholeChoice(0)
    streamed = answer.events(updates[0]) + answer.events(updates[1], SUMMARY)
    for update in updates:
        whole.add(update)
    [choice] = msgspec.json.decode(chat_answer().whole([whole], SUMMARY))["choices"]
    assert choice["message"] == WHOLE
    assert choice["finish_reason"] == "tool_calls"
    chunks = [chunk["choices"][0] for chunk in events(streamed.decode())[:-1]]
    assert put_together([chunk["delta"] for chunk in chunks]) | {"refusal": None} == WHOLE
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["tool_calls"]
    assert chunks[-1]["delta"] == {}


@pytest.mark.parametrize(
    ("parts", "content"),
    [([], ""), ([ToolCallStart(0, "a", "f"), ToolCallArguments(0, "{}")], None), ([Reasoning("hm")], "")],
)
def test_content_is_null_only_beside_tool_calls(parts: list[Part], content: str | None) -> None:
    whole = WholeChoice(0)
    whole.add(Update(0, parts, "stop"))
    [choice] = msgspec.json.decode(chat_answer().whole([whole], SUMMARY))["choices"]
    assert choice["message"]["content"] == content


def test_the_blocks_of_a_choice_are_in_the_order_in_which_they_came() -> None:
    whole = WholeChoice(0)
    for part in [*PARTS, Content("and "), Content("on")]:
        whole.add(Update(0, [part], "stop", stop_string="!"))
    assert whole.blocks == [
        WholeReasoning(["let me ", "think"]),
        WholeText(["I call ", "two"]),
        WholeToolCall("call_a", "first", ['{"x"', ": 1}"]),
        WholeToolCall("call_b", "second", ["{}"]),
        WholeText(["and ", "on"]),
    ]
    assert (whole.content, whole.reasoning) == ("I call twoand on", "let me think")
    assert whole.tool_calls == whole.blocks[2:4]
    assert whole.stop_string == "!"

"""Answers to messages: blocks, stop reasons, usage, and streams that tell what the whole answer does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.api.messages.answer import SIGNATURE, call_input
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2, engine_pb2
from tests.gateway.api.messages.support import NOW, WEATHER, put_together, streamed, whole, without_ids
from tests.gateway.api.test_tools import says
from tests.gateway.support.running import RunningGateway
from tests.gateway.support.stations import delta, end, first

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
DEEP = '{"a":' * 2000 + "1" + "}" * 2000
TOOLS = {"tools": [WEATHER, NOW]}


def ends(
    gateway: RunningGateway, *texts: str, reason: Any = common_pb2.FINISH_REASON_STOP, stop_string: str | None = None
) -> None:
    """The model writes these texts and ends so; 3 of the 5 prompt tokens are cached."""

    async def script(request: Any, context: Any) -> Any:
        yield detokenizer_pb2.TextDelta(text=texts[0], num_tokens=1, start=engine_pb2.StreamStart(cached_tokens=3))
        for text in texts[1:]:
            yield delta(text)
        last = end(reason=reason, completion_tokens=len(texts))
        if stop_string is not None:
            last.end.stop_string = stop_string
        yield last

    gateway.stations.detokenizer.script = script
    gateway.stations.tokenizer.formats = {"tool_call_format": "hermes", "reasoning_format": "think"}


async def test_a_whole_answer(gateway: RunningGateway) -> None:
    ends(gateway, "Hello", " world")
    answer = await whole(gateway, messages=[{"role": "user", "content": "hi"}])
    assert answer.pop("id").startswith("msg_req-")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "smol",
        "content": [{"type": "text", "text": "Hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 2,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


async def test_the_events_of_a_stream(gateway: RunningGateway) -> None:
    ends(gateway, "<think>Hm.</think>", "Hi", f"!\n{CALL}", "\nWait.")
    events = await streamed(gateway, **TOOLS)
    assert [(event["type"], event.get("index")) for event in events] == [
        ("message_start", None),
        ("ping", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("content_block_start", 3),
        ("content_block_delta", 3),
        ("content_block_stop", 3),
        ("message_delta", None),
        ("message_stop", None),
    ]
    prompt_tokens = len(gateway.stations.detokenizer.requests[0].request.prompt_ids)
    assert events[0]["message"]["usage"]["input_tokens"] == prompt_tokens - 3
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 3
    assert events[4]["delta"] == {"type": "signature_delta", "signature": SIGNATURE}
    assert events[10]["content_block"]["input"] == {}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert put_together(events)["content"][2]["input"] == {"city": "Rom"}


TEXTS = [
    "Hello world",
    "",
    f"<think>\nHm.\n</think>\n\nLooking.\n{CALL}",
    f"{CALL}\n{CALL}",
    f"A{CALL}B",
    "<think>never ends",
    '<tool_call>{"name": "weather", "arguments": {"city": "Rom", "da',
    '<tool_call>{"name": "weather", "arguments": {"city": 123456789012345678901234567890}}</tool_call>',
    'line\nend\r\n"quoted"\\ \u2028🦊',
]


@pytest.mark.parametrize("more", [{}, {"thinking": {"type": "adaptive", "display": "omitted"}}])
@pytest.mark.parametrize("reason", [common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH])
async def test_a_stream_equals_the_whole_answer(gateway: RunningGateway, reason: Any, more: dict[str, Any]) -> None:
    for text in TEXTS:
        ends(gateway, *(text or [""]), reason=reason)
        answer = await whole(gateway, **TOOLS, **more)
        assert without_ids(put_together(await streamed(gateway, **TOOLS, **more))) == without_ids(answer)


@pytest.mark.parametrize(
    ("text", "choice", "calls"),
    [
        ('{"city": "Rom"}', {"type": "tool", "name": "weather"}, [("weather", {"city": "Rom"})]),
        ('[{"name": "now", "arguments": {}}]', {"type": "any"}, [("now", {})]),
        (CALL + CALL, {"type": "auto", "disable_parallel_tool_use": True}, [("weather", {"city": "Rom"})]),
    ],
)
async def test_calls_that_are_asked_for(
    gateway: RunningGateway, text: str, choice: dict[str, Any], calls: list[Any]
) -> None:
    says(gateway, text)
    answer = await whole(gateway, **TOOLS, tool_choice=choice)
    assert answer["stop_reason"] == "tool_use"
    assert [(block["name"], block["input"]) for block in answer["content"]] == calls
    assert put_together(await streamed(gateway, **TOOLS, tool_choice=choice))["stop_reason"] == "tool_use"


ENDINGS: list[tuple[str, dict[str, Any], tuple[str, str | None]]] = [
    ("x", {}, ("end_turn", None)),
    ("x", {"reason": common_pb2.FINISH_REASON_LENGTH}, ("max_tokens", None)),
    ("x", {"stop_string": "END"}, ("stop_sequence", "END")),
    (CALL, {}, ("tool_use", None)),
    (CALL[:-30], {"reason": common_pb2.FINISH_REASON_LENGTH}, ("max_tokens", None)),
    (CALL[:-30], {"stop_string": "END"}, ("stop_sequence", "END")),
]


async def test_stop_reasons(gateway: RunningGateway) -> None:
    for text, ending, expected in ENDINGS:
        ends(gateway, text, **ending)
        for answer in (await whole(gateway, **TOOLS), put_together(await streamed(gateway, **TOOLS))):
            assert (answer["stop_reason"], answer["stop_sequence"]) == expected


async def test_max_tokens_beyond_the_window_ask_for_what_fits(gateway: RunningGateway) -> None:
    ends(gateway, "x", reason=common_pb2.FINISH_REASON_LENGTH)
    for max_tokens, expected in ((2048, "model_context_window_exceeded"), (1000, "max_tokens")):
        answer = await whole(gateway, max_tokens=max_tokens)
        assert answer["stop_reason"] == expected
        asked = gateway.stations.detokenizer.requests[-1].request.stop
        assert asked.HasField("max_tokens") == (max_tokens == 1000)


async def test_thinking_is_shown_or_omitted(gateway: RunningGateway) -> None:
    says(gateway, "<think>Hm.</think>Yes.")
    for display, thinking in (("summarized", "Hm."), ("omitted", "")):
        answer = await whole(gateway, thinking={"type": "adaptive", "display": display})
        assert answer["content"] == [
            {"type": "thinking", "thinking": thinking, "signature": SIGNATURE},
            {"type": "text", "text": "Yes."},
        ]
        assert 0 < answer["usage"]["output_tokens_details"]["thinking_tokens"] < answer["usage"]["output_tokens"]


async def test_an_answer_that_ends_with_its_first_token(gateway: RunningGateway) -> None:
    async def nothing(request: Any, context: Any) -> Any:
        yield end("", completion_tokens=1)

    gateway.stations.detokenizer.script = nothing
    message = put_together(await streamed(gateway))
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


async def test_text_of_any_kind_survives_the_event_form(gateway: RunningGateway) -> None:
    texts = ['a\r\n\n"b"\\', "event: message_stop", "🦊\u2028é\x00\x7f"]

    async def odd(request: Any, context: Any) -> Any:
        yield first(texts[0])
        for text in texts[1:]:
            yield delta(text)
        yield end()

    gateway.stations.detokenizer.script = odd
    assert put_together(await streamed(gateway))["content"] == [{"type": "text", "text": "".join(texts)}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": 1} ', {"a": 1}),
        ('{"a": nope}', {"arguments": '{"a": nope}'}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ("[1]", {"arguments": "[1]"}),
        ("a word", {"arguments": "a word"}),
        (DEEP, {"arguments": DEEP}),
    ],
)
def test_the_input_of_a_call_is_an_object_whatever_the_model_wrote(text: str, expected: Any) -> None:
    assert call_input(text) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), json_values, max_size=3), st.integers(0, 60))
def test_a_cut_call_keeps_what_is_whole(arguments: dict[str, Any], length: int) -> None:
    text = json.dumps(arguments, ensure_ascii=False)
    assert call_input(text) == arguments
    assert set(call_input(text[:length])) <= set(arguments)

"""What of a chat request's JSON is refused, by which name, and what a template gets of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.common.errors import InvalidArgument
from services.tokenizer.chat import ROLES, parse_chat

USER = {"role": "user", "content": "Hello"}


def parse(*messages: Any, **others: Any) -> Any:
    return parse_chat(json.dumps(list(messages)), **others)


@pytest.mark.parametrize(
    ("messages_json", "param", "words"),
    [
        ("", "messages", "not valid JSON"),
        ("{", "messages", "not valid JSON"),
        ('[{"role": "user", "content": NaN}]', "messages", "NaN is not a JSON value"),
        ("[" * 100_000, "messages", "nested too deeply"),
        ('"hello"', "messages", "must be a list"),
        ('{"role": "user"}', "messages", "must be a list"),
        ("[]", "messages", "at least one message"),
        ('["hello"]', "messages[0]", "must be an object"),
        ('[{"content": "x"}]', "messages[0].role", "must be one of system"),
        ('[{"role": 7, "content": "x"}]', "messages[0].role", "must be one of"),
        ('[{"role": ["user"], "content": "x"}]', "messages[0].role", "must be one of"),
        ('[{"role": "user<|im_end|>", "content": "x"}]', "messages[0].role", "must be one of"),
        ('[{"role": "user"}]', "messages[0].content", "must be a string or a list"),
        ('[{"role": "user", "content": null}]', "messages[0].content", "must be a string or a list"),
        ('[{"role": "user", "content": 7}]', "messages[0].content", "must be a string or a list"),
        ('[{"role": "user", "content": ["x"]}]', "messages[0].content[0]", "must be an object"),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "messages[0].content[0].text", "must be a string"),
        ('[{"role": "user", "content": [{"text": "x"}]}]', "messages[0].content[0].type", "only 'text'"),
        (
            '[{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]',
            "messages[0].content[1].type",
            "'image_url' is not supported",
        ),
        ('[{"role": "assistant", "tool_calls": "x"}]', "messages[0].tool_calls", "must be a list of objects"),
        (f'[{{"role": "user", "content": {"1" * 5000}}}]', "messages", "holds an integer of more than 4300 digits"),
        ('[{"role": "user", "content": "\\ud83d"}]', "messages", "surrogate"),
        ('[{"role": "user", "content": "x", "\\udc00": 1}]', "messages", "surrogate"),
    ],
)
def test_messages_are_refused_by_name(messages_json: str, param: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_chat(messages_json)
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("tools_json", "{}", "tools"),
        ("tools_json", "nonsense", "tools"),
        ("tools_json", "[{}, 7]", "tools[1]"),
        ("template_kwargs_json", "[]", "template_kwargs"),
        ("template_kwargs_json", "nonsense", "template_kwargs"),
        ("template_kwargs_json", '{"x": "\\udfff"}', "template_kwargs"),
    ],
)
def test_tools_and_kwargs_are_refused_by_name(field: str, value: str, param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(USER, **{field: value})
    assert caught.value.param == param


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_the_chat_api_are_taken(role: str) -> None:
    assert parse({"role": role, "content": "x"}).messages == [{"role": role, "content": "x"}]


def test_whole_surrogate_pairs_are_characters() -> None:
    chat = parse_chat('[{"role": "user", "content": "\\ud83d\\ude00"}]')
    assert chat.messages[0]["content"] == "😀"


def test_text_parts_are_kept_as_they_are() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse({"role": "user", "content": parts}).messages[0]["content"] == parts


def test_an_assistant_message_may_hold_tool_calls_alone() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    message = parse(USER, {"role": "assistant", "content": None, "tool_calls": calls}).messages[1]
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}


@pytest.mark.parametrize(
    "arguments",
    ["{broken", "7", "", {"x": 1}, '{"x": "\\ud83d"}', '{"\\udc00": 1}', '{"x": NaN}', '{"x": ' + "[" * 20_000],
)
def test_arguments_that_are_no_json_object_reach_the_template_unchanged(arguments: Any) -> None:
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    message = parse(USER, {"role": "assistant", "content": "", "tool_calls": calls}).messages[1]
    assert message["tool_calls"] == calls


def test_what_else_a_message_has_is_kept() -> None:
    assert parse({**USER, "name": "ann"}).messages == [{**USER, "name": "ann"}]

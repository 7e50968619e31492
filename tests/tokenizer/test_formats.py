"""Formats read off chat templates, and tools for a template that knows none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.tokenizer.chat import Chat, parse_chat
from services.tokenizer.formats import Formats, formats_of, is_reasoning_open
from services.tokenizer.model_tokenizer import ModelTokenizer
from services.tokenizer.tool_prompt import with_tools_told
from tests.tokenizer.test_model_tokenizer import with_template

# What tells the templates of well-known models apart.
TEMPLATES = [
    ("{{ tools }} <tool_call>{'name'} </tool_call> {{ '</think>' }}", Formats("hermes", "think")),
    ("{{ tools }} <tool_call><function=name></function></tool_call>", Formats("", "")),
    ("[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS] [TOOL_CALLS]", Formats("mistral", "")),
    ("ipython <|python_tag|> {'\"parameters\"'} {{ tools }}", Formats("llama3_json", "")),
    ("{{ tools }} [func_name1(params_name1=value), func_name2()] <|python_start|>", Formats("pythonic", "")),
    ("{{ tools }}", Formats("", "")),
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


@pytest.mark.parametrize(("template", "expected"), TEMPLATES)
def test_formats_of_templates(template: str, expected: Formats) -> None:
    assert formats_of(template, takes_tools=True) == expected
    assert formats_of(template, takes_tools=False).tool_calls == "hermes"


def test_reasoning_that_a_prompt_leaves_open() -> None:
    assert is_reasoning_open("<|assistant|><think>\n")
    assert not is_reasoning_open("<|assistant|><think>\n\n</think>\n\n")


def test_a_template_that_shows_tools_is_found_out_by_rendering(files: dict[str, bytes]) -> None:
    shows = with_template(files, "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{{ messages[0].content }}")
    assert "weather" in shows.render(Chat([{"role": "user", "content": "x"}], tools=TOOLS))
    assert "tool_response" not in shows.render(Chat([{"role": "user", "content": "x"}], tools=TOOLS))
    assert shows.formats == Formats("hermes", "")


def test_the_default_model_is_told_of_tools_and_shown_calls_and_results(tokenizer: ModelTokenizer) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "warm"}]},
    ]
    chat = parse_chat(json.dumps(messages), json.dumps(TOOLS))
    prompt = tokenizer.render(chat)
    system, user, assistant, results, _ = [turn.partition("\n")[2] for turn in prompt.split("<|im_start|>")[1:]]
    assert system.startswith("Be brief.\n\nYou can call functions.")
    assert '{"name": "weather", "parameters": {"type": "object", "properties": {}}}' in system
    assert user.startswith("Weather?")
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert assistant.startswith(f"{call}\n{call}")
    assert results.startswith("<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>")
    assert tokenizer.formats == Formats("hermes", "")


def test_a_chat_without_tools_stays_as_it_is() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert with_tools_told(Chat(messages)).messages == messages

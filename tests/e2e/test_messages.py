"""Anthropic's Messages API over the whole road, by the official client."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

from tests.e2e.client import Client, user
from tests.e2e.tool_texts import TIME, WEATHER
from tests.support.stack import Stack

TOOLS: Any = [
    {"name": tool["function"]["name"], "input_schema": tool["function"].get("parameters", {"type": "object"})}
    for tool in (WEATHER, TIME)
]
GREEDY: Any = {"extra_body": {"temperature": 0}}
COLOURS: Any = {"model": "default", "max_tokens": 20, "messages": user("Name three colours."), **GREEDY}


def a_client(stack: Stack) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0)


@pytest.fixture
def client(real_stack: Stack) -> anthropic.Anthropic:
    return a_client(real_stack)


def same(message: Any) -> Any:
    """What two answers to one request have in common: a call has an id of its own, and the second finds a cache."""
    fields = message.to_dict()
    usage = fields["usage"]
    content = [{name: value for name, value in block.items() if name != "id"} for block in fields["content"]]
    return {
        "content": content,
        "stop": (fields["stop_reason"], fields["stop_sequence"]),
        "tokens": (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]),
    }


async def test_the_model_says_what_it_says_in_a_chat(client: anthropic.Anthropic, real_stack: Stack) -> None:
    answer = client.messages.create(**COLOURS, system="You are a painter.")
    with client.messages.stream(**COLOURS, system="You are a painter.") as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert same(streamed) == same(answer)
    assert streamed.usage.cache_read_input_tokens
    messages = [{"role": "system", "content": "You are a painter."}, *user("Name three colours.")]
    async with Client(real_stack) as http:
        chat = await http.whole(messages=messages, max_tokens=20, temperature=0)
    assert text == chat["choices"][0]["message"]["content"]
    assert same(answer)["tokens"] == (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"])
    assert answer.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[chat["choices"][0]["finish_reason"]]
    counted = client.messages.count_tokens(model="default", messages=COLOURS["messages"], system="You are a painter.")
    assert counted.input_tokens == chat["usage"]["prompt_tokens"]


def test_a_stop_sequence(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**COLOURS).content[0].text  # type: ignore[union-attr]
    stop = text[5:9]
    answer = client.messages.create(**COLOURS, stop_sequences=["never written", stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]


def test_a_tool_that_is_forced(client: anthropic.Anthropic) -> None:
    asked: Any = {**COLOURS, "max_tokens": 100, "tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}}
    answer = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert same(streamed) == same(answer)
    (call,) = answer.content
    assert call.type == "tool_use"
    assert call.input["unit"] in ("C", "F")
    assert answer.stop_reason == "tool_use"


class Place(BaseModel):
    kind: Literal["harbour", "mountain", "plain"]
    is_old: bool


def test_the_client_parses_an_answer_that_has_a_schema(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(**{**COLOURS, "max_tokens": 60}, output_format=Place)
    assert isinstance(answer.parsed_output, Place)


@pytest.mark.parametrize("word", ["WITH-THOUGHT", "ONLY-THOUGHT", "TEXT-AROUND", "NO-CALL", "plain"])
def test_a_stream_of_blocks_equals_the_whole_answer(tool_stack: Stack, word: str) -> None:
    asked: Any = {"model": "default", "max_tokens": 1000, "messages": user(word), "tools": TOOLS}
    client = a_client(tool_stack)
    answer = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        assert same(stream.get_final_message()) == same(answer)
    if word == "WITH-THOUGHT":
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
        assert answer.content[0].thinking == "Which city?"  # type: ignore[union-attr]
        assert answer.content[2].input == {"city": "Köln", "unit": "C"}  # type: ignore[union-attr]


def test_a_loop_with_tools(tool_stack: Stack) -> None:
    """The client's own: it calls the functions and sends their results until there are no more calls."""
    asked_for: list[str] = []

    @beta_tool
    def get_weather(city: str, unit: str) -> str:
        """The weather in a city."""
        asked_for.append(f"{city} {unit}")
        return "sunny"

    messages: Any = user("Weather in Köln and Rom?")
    tools: Any = [get_weather]
    runner = a_client(tool_stack).beta.messages.tool_runner(
        model="default", max_tokens=10_000, messages=messages, tools=tools
    )
    last = runner.until_done()
    assert asked_for == ["Köln C", "Rom C"]
    assert [block.text for block in last.content] == ["It is sunny in Köln."]  # type: ignore[union-attr]


def test_errors_are_raised_as_their_classes(client: anthropic.Anthropic) -> None:
    picture: Any = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(**{**COLOURS, "model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type: 'image'") as raised:
        client.messages.create(**{**COLOURS, "messages": [{"role": "user", "content": [picture]}]})
    assert (raised.value.type, raised.value.error_code) == ("invalid_request_error", "unsupported_parameter")
    assert raised.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="context length"):
        client.messages.create(**{**COLOURS, "messages": user("word " * 20_000)})

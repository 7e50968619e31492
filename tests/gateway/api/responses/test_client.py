"""The official client's ways to get a response."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from services.common import errors
from services.pb.postroad.v1 import common_pb2
from tests.gateway.support.running import RunningGateway
from tests.gateway.support.stations import delta, end, first
from tests.gateway.test_errors import failing

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest_asyncio.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def saying(gateway: RunningGateway, *texts: str, reason: Any = common_pb2.FINISH_REASON_STOP) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        yield first(texts[0])
        for text in texts[1:]:
            yield delta(text)
        yield end(reason=reason)

    gateway.stations.detokenizer.script = script


async def test_create(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="smol", input="hi", instructions="Be brief.", metadata={"a": "b"})
    assert answer.output_text == "Hello world"
    assert (answer.status, answer.model, answer.metadata, answer.instructions) == (
        "completed",
        "smol",
        {"a": "b"},
        "Be brief.",
    )
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (5, 2, 7)
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.id.startswith("resp_")


async def test_a_plain_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="smol", input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="smol", input="hi") as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert snapshots == ["Hel", "Hello", "Hello world"]
    assert final.output_text == "Hello world"


async def test_parse(gateway: RunningGateway, client: openai.AsyncOpenAI) -> None:
    class City(BaseModel):
        name: str

    saying(gateway, '{"name": ', '"Köln"}')
    answer = await client.responses.parse(model="smol", input="a city", text_format=City)
    assert answer.output_parsed == City(name="Köln")
    sent = gateway.stations.detokenizer.requests[-1].request.structured_output
    assert json.loads(sent.json_schema)["required"] == ["name"]
    async with client.responses.stream(model="smol", input="a city", text_format=City) as stream:
        assert (await stream.get_final_response()).output_parsed == City(name="Köln")


async def test_a_loop_with_tools(gateway: RunningGateway, client: openai.AsyncOpenAI) -> None:
    """As clients do it: the output is put behind the input, with what the calls returned."""
    gateway.stations.tokenizer.formats = {"tool_call_format": "hermes", "reasoning_format": "think"}
    saying(gateway, "<think>\nWhich city?\n</think>\n\nLet me look.\n", CALL)
    items: list[Any] = [{"role": "user", "content": "Weather in Köln?"}]
    answer = await client.responses.create(model="smol", input=items, tools=[WEATHER])
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Köln"}
    items += answer.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    await client.responses.create(model="smol", input=items, tools=[WEATHER])
    told = json.loads(gateway.stations.tokenizer.requests[-1].messages_json)
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    assert told[1]["reasoning_content"] == "Which city?"
    assert told[1]["content"] == "Let me look."
    assert told[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": call.arguments}
    assert told[2] == {
        "role": "tool",
        "content": "sunny",
        "tool_call_id": call.call_id,
        "name": "get_weather",
    }


async def test_an_incomplete_response(gateway: RunningGateway, client: openai.AsyncOpenAI) -> None:
    saying(gateway, "Once upon", reason=common_pb2.FINISH_REASON_LENGTH)
    answer = await client.responses.create(model="smol", input="a tale", max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert gateway.stations.detokenizer.requests[-1].request.stop.max_tokens == 2
    stream = await client.responses.create(model="smol", input="a tale", stream=True)
    *_, item, last = [event async for event in stream]
    assert last.type == "response.incomplete"
    assert item.type == "response.output_item.done"
    assert item.item.type == "message"
    assert item.item.status == last.response.output[0].status == "incomplete"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidArgument("odd", "seed"), openai.BadRequestError),
        (errors.QueueFull("full"), openai.RateLimitError),
        (errors.EngineFailed("failed"), openai.InternalServerError),
    ],
)
async def test_error_classes(
    gateway: RunningGateway, client: openai.AsyncOpenAI, error: errors.PostroadError, kind: type[openai.APIStatusError]
) -> None:
    gateway.stations.detokenizer.script = failing(error)
    for stream in (False, True):
        with pytest.raises(kind) as raised:
            await client.responses.create(model="smol", input="hi", stream=stream)
        assert raised.value.param == error.param


async def test_fieldbug_27_an_error_in_mid_stream_is_raised_by_the_client(
    gateway: RunningGateway, client: openai.AsyncOpenAI
) -> None:
    gateway.stations.detokenizer.script = failing(errors.EngineLost("gone"), first("x"))
    stream = await client.responses.create(model="smol", input="hi", stream=True)
    with pytest.raises(openai.APIError, match="gone") as raised:
        async for _ in stream:
            pass
    assert raised.value.code == "engine_lost"


async def test_stored_responses_are_not_there(client: openai.AsyncOpenAI) -> None:
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="no responses are stored"):
            await ask("resp_1")

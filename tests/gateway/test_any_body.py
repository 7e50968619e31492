"""Whatever a client sends to an endpoint, the gateway answers 200 or a proper 4xx, and serves the next request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway.api.descriptions import DESCRIPTIONS
from tests.gateway.support.running import running_gateway
from tests.support.answer_schemas import check_response

Json = dict[str, Any]
Place = tuple[str | int, ...]

EXAMPLES = 60
USER = {"role": "user", "content": "x"}
TOOL_CHAT: list[Json] = [
    {"role": "user", "content": [{"type": "text", "text": "x"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "y"},
]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ITEMS: list[Json] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "y"},
]
GENERATION: Json = {
    "model": "smol",
    "max_tokens": 5,
    "temperature": 0.5,
    "stop": ["a"],
    "logit_bias": {"5": 1},
    "stream": True,
    "stream_options": {"include_usage": True},
}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

# What is served, by the path of each endpoint that takes a body.
VALID: dict[str, list[Json]] = {
    "/v1/chat/completions": [
        {**GENERATION, "messages": [USER]},
        {"messages": TOOL_CHAT, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto", "n": 2},
        {"messages": [USER], "response_format": SCHEMA_FORMAT, "logprobs": True, "top_logprobs": 1},
    ],
    "/v1/completions": [
        {**GENERATION, "prompt": "x"},
        {"prompt": ["x", "y"], "n": 2, "best_of": 3},
        {"prompt": [[1, 2], [3]], "n": 2, "logprobs": 1, "echo": True, "guided_choice": ["a", "b"]},
    ],
    "/v1/responses": [
        {"input": "x", "instructions": "s", "max_output_tokens": 5, "stream": True, "metadata": {"a": "b"}},
        {"input": ITEMS, "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto"},
        {"input": [USER], "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
    ],
    "/v1/embeddings": [
        {"input": "x", "model": "smol", "pooling": "mean", "user": "u"},
        {"input": [[1, 2], [3]], "encoding_format": "base64", "dimensions": 3, "priority": 1, "timings": True},
    ],
    "/v1/messages": [
        {"messages": [USER], "max_tokens": 5, "stream": True, "stop_sequences": ["a"], "system": "s"},
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "max_tokens": 5,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"},
        },
    ],
    "/v1/messages/count_tokens": [{"messages": [USER], "system": [{"type": "text", "text": "s"}]}],
    "/tokenize": [
        {"prompt": "x", "add_special_tokens": False},
        {"messages": TOOL_CHAT, "tools": [{"type": "function", "function": FUNCTION}]},
    ],
    "/detokenize": [{"tokens": [120, 121], "skip_special_tokens": True}],
}

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Where something stands in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def field_names(path: str) -> list[str]:
    """The fields that a body may have."""
    body = DESCRIPTIONS[f"POST {path}"].body
    assert body is not None
    return sorted(body.__struct_fields__)


@st.composite
def mutations(draw: st.DrawFn, path: str) -> Json:
    """A valid body with some of its values replaced or taken out, and with more fields."""
    body = deepcopy(draw(st.sampled_from(VALID[path])))
    for _ in range(draw(st.integers(0, 3))):
        found = list(places(body))
        *outer, key = draw(st.sampled_from(found)) if found else ("model",)
        holder: Any = body
        for step in outer:
            holder = holder[step]
        if draw(st.booleans()) or not found:
            holder[key] = draw(values)
        else:
            del holder[key]
    more: Json = draw(st.dictionaries(st.sampled_from(field_names(path)), values, max_size=2))
    return body | more


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def bodies(path: str) -> st.SearchStrategy[bytes]:
    """Mutated bodies, whole and cut; any JSON; any bytes."""
    whole = mutations(path).map(encoded)
    cut = st.tuples(whole, st.integers(0, 200)).map(lambda given: given[0][: given[1]])
    return st.one_of(whole, whole, cut, values.map(encoded), st.binary(max_size=50))


def test_every_endpoint_that_takes_a_body_is_tried() -> None:
    assert {f"POST {path}" for path in VALID} == {name for name in DESCRIPTIONS if name.startswith("POST ")}


@pytest.mark.parametrize("path", VALID)
def test_no_body_gives_a_5xx_or_stops_the_next_request(path: str) -> None:
    with asyncio.Runner() as runner:  # one event loop for all examples
        stack = AsyncExitStack()
        gateway = runner.run(stack.enter_async_context(running_gateway()))

        async def send(body: bytes) -> None:
            response = await gateway.http.post(path, content=body)
            assert response.status_code in (200, 400, 404), response.text
            check_response(path, response)

        @settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
        @given(bodies(path))
        def answers_properly(body: bytes) -> None:
            runner.run(send(body))

        try:
            answers_properly()
            for valid in VALID[path]:
                response = runner.run(gateway.http.post(path, json=valid))
                assert response.status_code == 200, response.text
            runner.run(gateway.assert_idle())
        finally:
            runner.run(stack.aclose())

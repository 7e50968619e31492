from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.routing import Route

from services.gateway.api.descriptions import DESCRIPTIONS
from services.gateway.api.openapi import document
from tests.gateway.api.messages.support import WEATHER, post
from tests.gateway.api.test_tools import TEXT, says
from tests.gateway.support.running import RunningGateway
from tests.support.answer_schemas import check_response, our_spec

ROUTES = [Route(path, lambda _: None, methods=[method]) for method, path in map(str.split, DESCRIPTIONS)]
WORK = [path for path, methods in document(ROUTES, needs_key=False)["paths"].items() if "post" in methods]


def request_schema(spec: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of the body, with what it refers to."""
    content = spec["paths"][path]["post"]["requestBody"]["content"]
    return {**content["application/json"]["schema"], "components": spec["components"]}


async def served(gateway: RunningGateway) -> dict[str, Any]:
    spec: dict[str, Any] = (await gateway.http.get("/openapi.json")).json()
    return spec


@pytest.mark.asyncio(loop_scope="module")
async def test_the_document_is_valid_and_has_every_route(shared_gateway: RunningGateway) -> None:
    spec = await served(shared_gateway)
    validate(spec)
    assert spec == our_spec()
    described = {f"{method.upper()} {path}" for path, methods in spec["paths"].items() for method in methods}
    assert described == set((await shared_gateway.http.get("/")).json()["paths"]) == set(DESCRIPTIONS)


def test_a_route_without_a_description_is_a_fault() -> None:
    with pytest.raises(KeyError, match="GET /new"):
        document([Route("/new", lambda _: None)], needs_key=False)


@pytest.mark.parametrize(
    ("path", "body", "fits"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "unknown": 3}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": 3}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "best_of": 1}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "best_of": 2}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "x"}]}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": 5}}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"x": 5}}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "echo": True}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, False),
        ("/v1/chat/completions", {"messages": [{"role": "assistant"}, {"role": "user", "content": "x"}]}, True),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, False),
        ("/v1/chat/completions", {"messages": []}, False),
        ("/v1/chat/completions", {}, False),
        ("/v1/completions", {"prompt": [[1, 2], [3]], "n": 2}, True),
        ("/v1/completions", {"prompt": [-1]}, False),
        ("/v1/completions", {"prompt": "x", "tools": [{}]}, False),
        ("/v1/completions", {"prompt": "x", "guided_json": 3}, False),
        ("/v1/completions", {}, False),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}, True),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}, False),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, False),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "speed": "fast"}, False),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}, True),
        ("/v1/messages/count_tokens", {"messages": [{"role": "x", "content": "x"}]}, False),
        ("/v1/responses", {"input": "x", "metadata": {"a": "b"}, "store": False}, True),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}, True),
        ("/v1/responses", {"input": [{"type": "reasoning", "summary": []}]}, True),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, False),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, False),
        ("/v1/responses", {"input": []}, False),
        ("/v1/responses", {"input": "x", "store": True}, False),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, False),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function", "name": "f"}]}, True),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, False),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "xml"}}}, False),
        ("/v1/responses", {}, False),
        ("/v1/embeddings", {"input": ["x", "y"], "encoding_format": "base64", "pooling": "mean"}, True),
        ("/v1/embeddings", {"input": [1, 2], "normalize": True, "timings": True}, True),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, False),
        ("/v1/embeddings", {"input": "x", "pooling": "cls"}, False),
        ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 1}, False),
        ("/v1/embeddings", {}, False),
        ("/tokenize", {"prompt": "x"}, True),
        ("/tokenize", {"messages": [{"content": "x"}]}, False),
        ("/tokenize", {"prompt": "x", "tools": [{"type": {}}]}, False),
        ("/detokenize", {"tokens": [120]}, True),
        ("/detokenize", {"tokens": ["x"]}, False),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_bodies_fit_as_the_gateway_takes_them(
    shared_gateway: RunningGateway, path: str, body: dict[str, Any], fits: bool
) -> None:
    spec = await served(shared_gateway)
    assert Draft202012Validator(request_schema(spec, path)).is_valid(body) == fits
    response = await shared_gateway.http.post(path, json=body)
    assert (response.status_code == 200) == fits
    check_response(path, response)


@pytest.mark.parametrize("path", DESCRIPTIONS)
@pytest.mark.asyncio(loop_scope="module")
async def test_answers_are_as_described(shared_gateway: RunningGateway, path: str) -> None:
    method, path = path.split()
    if method == "GET":
        check_response(path, await shared_gateway.http.get(path.replace("{model}", "smol")))
    if "{model}" in path:
        check_response(path, await shared_gateway.http.get(path.replace("{model}", "another")))


ASKED: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "timings": True},
    {"n": 2, "timings": True},
    {"model": "another"},
    {"n": 0},
]


@pytest.mark.parametrize("fields", ASKED, ids=str)
@pytest.mark.asyncio(loop_scope="module")
async def test_generation_answers_as_described(shared_gateway: RunningGateway, fields: dict[str, Any]) -> None:
    check_response("/v1/chat/completions", await shared_gateway.chat(**fields))
    check_response("/v1/completions", await shared_gateway.complete(**fields))


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_are_answered_as_described(gateway: RunningGateway, stream: bool) -> None:
    says(gateway, TEXT)
    check_response("/v1/messages", await post(gateway, tools=[WEATHER], stream=stream))


def test_whoever_sets_keys_is_told_where_they_are_needed() -> None:
    without, with_keys = (document(ROUTES, needs_key=needed) for needed in (False, True))
    assert without["security"] == [{}, *with_keys["security"]]
    assert set(with_keys["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    for path, methods in with_keys["paths"].items():
        for operation in methods.values():
            is_open = operation.get("security") == []
            assert is_open == (path not in WORK and not path.startswith("/v1/"))
            assert is_open == ("401" not in operation["responses"])

"""schemathesis asks with requests made from descriptions of the API, ours and published ones, fitting and spoilt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import UnsupportedSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from services.gateway.api.descriptions import DESCRIPTIONS
from tests.e2e.client import Client
from tests.e2e.tool_texts import TEXTS
from tests.support.answer_schemas import check_answer, our_spec
from tests.support.published_specs import ANTHROPIC, EVENTS, OPENAI, WHOLE, PublishedSpec
from tests.support.stack import Stack

FEW, MANY = 8, 300  # requests of a kind to a path
SECONDS = 30.0  # after which an answer is none
FITTING, SPOILT = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
CONFORMS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
# Tokens and choices that take time but show nothing new: the largest values of these fields that are sent.
MOST = {"max_tokens": 16, "max_completion_tokens": 16, "max_output_tokens": 16, "n": 2, "best_of": 2}
ENDLESS = {"/v1/chat/completions": "max_completion_tokens", "/v1/responses": "max_output_tokens"}
UINT32_MAX = 2**32 - 1


modes = pytest.mark.parametrize("mode", [FITTING, SPOILT])
publishers = pytest.mark.parametrize("published", [OPENAI, ANTHROPIC], ids=lambda spec: spec.vendor)


@modes
def test_a_few_requests_by_our_description(tool_stack: Stack, mode: GenerationMode) -> None:
    ask(tool_stack, without_time_limit(our_spec()), mode, FEW, [not_a_server_error, *CONFORMS])


@modes
@publishers
def test_a_few_requests_by_published_ones(tool_stack: Stack, published: PublishedSpec, mode: GenerationMode) -> None:
    ask(tool_stack, of_ours(published), mode, FEW, [not_a_server_error])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@modes
def test_many_requests_by_our_description(tool_stack: Stack, mode: GenerationMode) -> None:
    ask(tool_stack, without_time_limit(our_spec()), mode, MANY, [not_a_server_error, *CONFORMS])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@modes
@publishers
def test_many_requests_by_published_ones(tool_stack: Stack, published: PublishedSpec, mode: GenerationMode) -> None:
    ask(tool_stack, of_ours(published), mode, MANY, [not_a_server_error])


def of_ours(published: PublishedSpec) -> dict[str, Any]:
    """A published specification, restricted to what we have."""
    return published.restricted(filter(published.describes, DESCRIPTIONS))


def without_time_limit(spec: dict[str, Any]) -> dict[str, Any]:
    """Without the header that asks for 504."""
    spec = deepcopy(spec)
    del spec["components"]["parameters"]["x-request-timeout"]
    for methods in spec["paths"].values():
        for operation in methods.values():
            operation["parameters"] = [
                parameter for parameter in operation["parameters"] if "x-request-timeout" not in str(parameter)
            ]
    return spec


def ask(stack: Stack, spec: dict[str, Any], mode: GenerationMode, examples: int, checks: list[Any]) -> None:
    """Sends requests to every path; afterwards nothing of them is left, and the next request is served."""
    must_be_refused = mode is SPOILT and negative_data_rejection in checks
    for operation in operations(spec):
        if mode is SPOILT and operation.method == "get":
            continue  # nothing that could be spoilt

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        @given(operation.as_strategy(generation_mode=mode))
        def conforms(case: Case) -> None:
            if not must_be_refused:
                make_small(case.operation.path, case.body)
            response = case.call(base_url=stack.url, timeout=SECONDS)
            case.validate_response(response, checks=list(checks_for(response, checks)))
            if response.status_code == 200:
                check(case.operation.label, response)

        with suppress(UnsupportedSchema):  # it gives up on spoiling some of the published schemas
            conforms()
    asyncio.run(check_that_it_serves(stack))


def operations(spec: dict[str, Any]) -> Iterator[Any]:
    for result in schemathesis.openapi.from_dict(spec).get_all_operations():
        yield result.ok()


def checks_for(response: Response, checks: list[Any]) -> Iterator[Any]:
    """Of a stream it would hold the event, not the event's data, to the schema: `check` does that."""
    is_stream = any(media.startswith(EVENTS) for media in response.headers.get("content-type", ()))
    for each in checks:
        if not (is_stream and each is response_schema_conformance):
            yield each


def make_small(path: str, body: Any) -> None:
    """Lowers what is valid; what would go on without a limit gets one."""
    if not isinstance(body, dict):
        return
    for name, most in MOST.items():
        if type(body.get(name)) is int and most < body[name] <= UINT32_MAX:
            body[name] = most
    limit = ENDLESS.get(path)
    if limit is not None and body.get(limit) is None:
        body[limit] = MOST[limit]


def check(operation: str, response: Response) -> None:
    """A good answer: strictly as it is described, and each event of a stream, too."""
    media = response.headers["content-type"][0].split(";")[0]
    if media == WHOLE:
        check_answer(operation, WHOLE, response.json())
    if media == EVENTS:
        for line in response.text.splitlines():
            if line.startswith("data: {"):
                check_answer(operation, EVENTS, json.loads(line.removeprefix("data: ")))


async def check_that_it_serves(stack: Stack) -> None:
    async with Client(stack) as client:
        await client.wait_idle()
        assert await client.text(messages=[{"role": "user", "content": "sunny"}]) == TEXTS["sunny"]

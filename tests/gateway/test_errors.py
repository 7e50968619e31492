from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.common import errors
from services.gateway.errors import from_station
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RunningGateway, events, running_gateway
from tests.gateway.support.stations import Script, end, first


def failing(error: Exception, *before: detokenizer_pb2.TextDelta) -> Script:
    """A script that yields `before` and then fails."""

    async def script(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        for message in before:
            yield message
        raise error

    return script


KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "server_error"}
BEFORE_THE_FIRST_TOKEN = [
    (errors.InvalidArgument("temperature is odd", "temperature"), 400, "temperature"),
    (errors.InvalidArgument("id 9 is too high", "prompt_ids"), 400, "messages"),
    (errors.ContextLengthExceeded("5000 tokens, limit 2048"), 400, "messages"),
    (errors.QueueFull("1024 requests wait"), 429, None),
    (errors.TooLarge("too large"), 413, "messages"),
    (errors.DeadlineExceeded("over"), 504, None),
    (errors.Internal("broken"), 500, None),
    (errors.NotReady("loading"), 503, None),
    (errors.EngineFailed("step failed"), 503, None),
    (errors.EngineLost("gone"), 503, None),
    (errors.Draining("stopping"), 503, None),
]


@pytest.mark.parametrize(
    ("error", "status", "param"), BEFORE_THE_FIRST_TOKEN, ids=lambda value: getattr(value, "reason", None)
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_token_is_an_http_error(
    gateway: RunningGateway, error: errors.PostroadError, status: int, param: str | None, stream: bool
) -> None:
    gateway.stations.detokenizer.script = failing(error)
    response = await gateway.chat(stream=stream)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"] == {
        "message": error.message,
        "type": KINDS.get(status, "invalid_request_error"),
        "param": param,
        "code": "invalid_value" if error.reason == "INVALID_ARGUMENT" else error.reason.lower(),
    }
    assert ("retry-after" in response.headers) == (status in (429, 503))
    await gateway.assert_idle()


@pytest.mark.parametrize(
    ("param", "expected"),
    [
        ("messages[2].content", "messages[2].content"),
        ("messages_json", "messages"),
        ("template_kwargs_json", "chat_template_kwargs"),
        ("prompt_ids", "messages"),
        ("prompt_ids[3]", "messages"),
        ("texts", "messages"),
        ("logit_bias", "logit_bias"),
    ],
)
def test_fields_of_stations_have_the_apis_names(param: str, expected: str) -> None:
    assert from_station(errors.InvalidArgument("odd", param), "messages").param == expected


@pytest.mark.parametrize(
    ("message", "param", "expected"),
    [
        (
            "template_kwargs: 'tools' cannot be set",
            "template_kwargs_json",
            "chat_template_kwargs: 'tools' cannot be set",
        ),
        ("prompt_ids has the token id 9", "prompt_ids", "prompt has the token id 9"),
        ("prompt_ids[3] is odd", "prompt_ids[3]", "prompt[3] is odd"),
        ("temperature must be at most 2", "temperature", "temperature must be at most 2"),
        ("the chat template refused the messages: prompt_ids", "messages_json", None),
        ("", "prompt_ids", None),
    ],
)
def test_messages_of_stations_have_the_apis_names(message: str, param: str, expected: str | None) -> None:
    assert from_station(errors.InvalidArgument(message, param), "prompt").message == (expected or message)


async def test_fieldbug_17_context_length_has_openais_code_and_both_numbers(gateway: RunningGateway) -> None:
    error = errors.ContextLengthExceeded("the prompt has 5000 tokens, the limit is 2048")
    gateway.stations.detokenizer.script = failing(error)
    body = (await gateway.complete()).json()["error"]
    assert (body["code"], body["param"]) == ("context_length_exceeded", "prompt")
    assert "5000" in body["message"]
    assert "2048" in body["message"]


@pytest.mark.parametrize("error", [errors.EngineLost("the connection broke"), ValueError("secret\ntext")])
async def test_fieldbug_27_an_error_in_mid_stream_is_the_last_event_and_valid_json(
    gateway: RunningGateway, error: Exception
) -> None:
    gateway.stations.detokenizer.script = failing(error, first("some"))
    response = await gateway.chat(stream=True)
    assert response.status_code == 200
    _role, text, last = events(response.text)
    assert text["choices"][0]["delta"] == {"content": "some"}
    assert set(last) == {"error"}
    assert last["error"]["type"] == "server_error"
    assert "secret" not in response.text
    await gateway.assert_idle()


async def test_an_error_after_the_first_token_of_a_whole_answer_is_an_http_error(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = failing(errors.EngineLost("the connection broke"), first("some"))
    response = await gateway.chat()
    assert response.status_code == 503
    assert len(gateway.stations.detokenizer.requests) == 1, "tokens were made: no second try"


async def test_an_end_without_a_finish_reason_is_an_error(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = failing(errors.Internal("x"))

    async def no_end(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("x")

    async def odd_end(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield end(reason=0)

    for script in (no_end, odd_end):
        gateway.stations.detokenizer.script = script
        response = await gateway.chat()
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal"
    await gateway.assert_idle()


async def test_unknown_paths_and_methods_answer_in_openais_form(gateway: RunningGateway) -> None:
    missing = await gateway.http.post("/v1/images/generations", json={})
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "unknown_path"
    assert (
        missing.json()["error"]["message"] == "unknown path: /v1/images/generations; GET / lists those that there are"
    )
    wrong = await gateway.http.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert (await gateway.http.post("/v1/chat/completions/")).status_code == 404


async def test_another_model_is_404_by_openais_code(gateway: RunningGateway) -> None:
    response = await gateway.chat(model="gpt-4")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "gpt-4" in error["message"]
    assert "smol" in error["message"]
    for name in ("smol", "default", None):
        assert (await gateway.chat(model=name)).status_code == 200


async def test_the_deadline_ends_a_request_in_any_phase() -> None:
    async def forever(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("x")
        await asyncio.Event().wait()

    async with running_gateway(request_timeout=0.3) as gateway:
        gateway.stations.detokenizer.script = forever
        whole = await gateway.chat()
        assert whole.status_code == 504
        stream = await gateway.chat(stream=True)
        assert events(stream.text)[-1]["error"]["code"] == "deadline_exceeded"
        await gateway.assert_idle()
        remaining = [context.deadline for context in gateway.stations.detokenizer.contexts]
        assert all(deadline is not None for deadline in remaining), "the deadline travels on"

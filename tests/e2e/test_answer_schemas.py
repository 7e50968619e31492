"""Every answer is as /openapi.json says and, where the path is OpenAI's or Anthropic's, as they published it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from services.gateway.api.descriptions import DESCRIPTIONS
from tests.e2e.client import user
from tests.e2e.sixty_answers import Answered
from tests.e2e.sixty_requests import REAL, SCRIPTED
from tests.e2e.tool_texts import WEATHER
from tests.support.answer_schemas import check_answer, check_error
from tests.support.published_specs import ANTHROPIC, EVENTS, OPENAI, WHOLE
from tests.support.stack import Stack


def check(answered: Answered) -> None:
    check_answer(answered.operation, WHOLE, answered.whole)
    for event in answered.events:
        check_answer(answered.operation, EVENTS, event)


@pytest.mark.parametrize("name", REAL)
def test_the_real_model_s_answer(real_answers: dict[str, Answered], name: str) -> None:
    check(real_answers[name])


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_scripted_answer(scripted_answers: dict[str, Answered], name: str) -> None:
    check(scripted_answers[name])


CALLING = "WITH-THOUGHT"  # is answered by a call after a thought
WEATHER_TOOL = WEATHER["function"]
# Bodies for the other endpoints, by path.
OTHERS: dict[str, list[dict[str, Any]]] = {
    "/v1/responses": [
        {"input": "sunny", "max_output_tokens": 5, "include": ["message.output_text.logprobs"], "top_logprobs": 1},
        {"input": CALLING, "tools": [{"type": "function", **WEATHER_TOOL}], "timings": True},
    ],
    "/v1/embeddings": [
        {"input": ["one", "two"], "encoding_format": "float"},
        {"input": [1, 2, 3], "encoding_format": "base64"},
    ],
    "/v1/messages/count_tokens": [{"messages": user("sunny")}],
    "/tokenize": [{"prompt": "sunny"}, {"messages": user("sunny")}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/v1/messages": [
        {"max_tokens": 20, "messages": user("sunny"), "stop_sequences": ["Köln"]},
        {
            "max_tokens": 200,
            "messages": user(CALLING),
            "tools": [{"name": WEATHER_TOOL["name"], "input_schema": WEATHER_TOOL["parameters"]}],
        },
    ],
}


@pytest.mark.parametrize("path", OTHERS)
def test_another_endpoint_s_answers(tool_stack: Stack, path: str) -> None:
    with httpx.Client(base_url=tool_stack.url, timeout=30) as http:
        for body in OTHERS[path]:
            whole = http.post(path, json=body)
            assert whole.status_code == 200, whole.text
            check_answer(f"POST {path}", WHOLE, whole.json())
            if not DESCRIPTIONS[f"POST {path}"].events:
                continue
            streamed = http.post(path, json={**body, "stream": True}).text
            events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
            assert len(events) > 3
            for event in events:
                if event != {"type": "ping"}:  # which only Anthropic's documentation has
                    check_answer(f"POST {path}", EVENTS, event)


def test_models(tool_stack: Stack) -> None:
    with httpx.Client(base_url=tool_stack.url) as http:
        models = http.get("/v1/models").json()
        check_answer("GET /v1/models", WHOLE, models)
        check_answer("GET /v1/models/{model}", WHOLE, http.get(f"/v1/models/{models['data'][0]['id']}").json())


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400),
        ("POST", "/v1/completions", b'{"prompt": "x", "model": "y"}', 404),
        ("POST", "/v1/completions", b'{"prompt": [99999999]}', 400),
        ("GET", "/v1/completions", b"", 405),
        ("DELETE", "/v1/models", b"", 405),
        ("GET", "/v1/nowhere", b"", 404),
        ("GET", "/v1/models/", b"", 404),
        ("GET", "/v1/models/another/more", b"", 404),
        ("POST", "/v1/chat/completions/", b"{}", 404),
        ("POST", "/v1/messages", b"{", 400),
        (
            "POST",
            "/v1/messages",
            b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "model": "y"}',
            404,
        ),
        ("GET", "/v1/messages", b"", 405),
    ],
)
def test_errors_have_the_vendor_s_form(tool_stack: Stack, method: str, path: str, content: bytes, status: int) -> None:
    response = httpx.request(method, f"{tool_stack.url}{path}", content=content)
    assert response.status_code == status
    check_error(ANTHROPIC if path.startswith("/v1/messages") else OPENAI, response.json())

"""Every answer is as /openapi.json says and, where OpenAI has the path, as OpenAI's specification does."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.sixty_answers import Answered
from tests.e2e.sixty_requests import REAL, SCRIPTED
from tests.support.answer_schemas import EVENTS, WHOLE, check_answer, check_error
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
    ],
)
def test_errors_have_openais_form(tool_stack: Stack, method: str, path: str, content: bytes, status: int) -> None:
    response = httpx.request(method, f"{tool_stack.url}{path}", content=content)
    assert response.status_code == status
    check_error(response.json())

"""Errors below Anthropic's paths have Anthropic's form, wherever they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.gateway.error_forms import error_form
from services.gateway.errors import ApiError
from tests.gateway.support.running import RunningGateway
from tests.gateway.test_api_keys import guarded_gateway

ERROR = ApiError(404, "no such thing", code="model_not_found", param="model")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_form(path: str) -> None:
    form = error_form(path, "req-1")
    expected = {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "no such thing",
            "details": {"error_code": "model_not_found", "param": "model"},
        },
        "request_id": "req-1",
    }
    assert json.loads(form.body(ERROR)) == expected
    name, data = form.event(ERROR).decode().removesuffix("\n\n").split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages2", "/", "/v1/message"])
def test_openais_form(path: str) -> None:
    form = error_form(path, "req-1")
    assert set(json.loads(form.body(ERROR))) == {"error"}
    assert form.event(ERROR) == b"data: " + form.body(ERROR) + b"\n\n"


async def test_outside_the_endpoints(gateway: RunningGateway) -> None:
    missing = await gateway.http.get("/v1/messages/nowhere")
    assert missing.status_code == 404
    answer = missing.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "not_found_error")
    assert answer["request_id"] == missing.headers["request-id"] == missing.headers["x-request-id"]
    assert "request-id" not in (await gateway.http.get("/nowhere")).headers


async def test_without_an_api_key(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        refused = await gateway.http.post("/v1/messages", json={})
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        assert refused.headers["request-id"]

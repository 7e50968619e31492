from __future__ import annotations

import pytest

from tests.gateway.support.running import RunningGateway


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"not json", "invalid_json"),
        (b'{"messages": [], "prompt": ""} x', "invalid_json"),
        (b'{"temperature": NaN, "messages": []}', "invalid_json"),
        (b'{"temperature": Infinity}', "invalid_json"),
        (b'{"prompt": "\xff\xfe", "model": "\xff"}', "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_json"),
        (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "invalid_json"),
        (b"[]", "invalid_value"),
        (b"null", "invalid_value"),
        (b"3", "invalid_value"),
        (b'{"temperature": 1e999}', "invalid_value"),
    ],
)
async def test_a_body_that_is_no_json_object_gets_400(gateway: RunningGateway, body: bytes, code: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        response = await gateway.http.post(path, content=body)
        if path == "/tokenize" and b"temperature" in body and code == "invalid_value":
            continue  # the field does not exist there
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == code
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}


async def test_an_empty_body_is_called_empty(gateway: RunningGateway) -> None:
    for body in (b"", b" \n"):
        error = (await gateway.http.post("/v1/chat/completions", content=body)).json()["error"]
        assert error["message"] == "the body is empty; it must be a JSON object"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"messages": "hello"}', "messages: expected array, got string"),
        ('{"temperature": "hot"}', "temperature: expected number or null, got string"),
        ('{"max_tokens": 1.5}', "max_tokens: expected integer or null, got number"),
        ('{"stream": 1}', "stream: expected boolean or null, got integer"),
        ('{"stop": 3}', "stop: expected string, array or null, got integer"),
        ('{"messages": [{"content": "x"}]}', "messages[0].role is required"),
        ("[]", "the request body: expected object, got array"),
    ],
)
async def test_types_are_called_by_jsons_names(gateway: RunningGateway, body: str, message: str) -> None:
    response = await gateway.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"top_p": 0', "top_p: expected number > 0.0, got 0"),
        ('"top_p": 1.0000000001', "top_p: expected number <= 1.0, got 1.0000000001"),
        ('"temperature": -1e-300', "temperature: expected number >= 0.0, got -1e-300"),
        ('"top_k": -2', "top_k: expected integer >= -1, got -2"),
        ('"stop_token_ids": [1, -5]', "stop_token_ids[1]: expected integer >= 0, got -5"),
        ('"seed": 123456789012345678901', "seed: expected integer <= 9223372036854775807, got 123456789012345678901"),
        (f'"max_tokens": 1{"0" * 100}', "max_tokens: expected integer <= 4294967295"),
        (f'"max_tokens": {"9" * 5000}', "max_tokens: integer value out of range"),
        (f'"top_p": 0, "unknown": {"9" * 5000}', "top_p: expected number > 0.0"),
        ('"logit_bias": {"5": 101}', "logit_bias: expected number <= 100.0"),
    ],
)
async def test_a_number_out_of_its_range_is_named(gateway: RunningGateway, fields: str, message: str) -> None:
    response = await gateway.http.post("/v1/chat/completions", content=f'{{"messages": [], {fields}}}')
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize("text", ["\\ud83d", "\\ud83d!", "\\ud83d\\u0041", "\\udc00", "\\uD83D and a long tail"])
async def test_half_a_surrogate_pair_is_called_so(gateway: RunningGateway, text: str) -> None:
    for body in (f'{{"model": "{text}"}}', f'{{"model":"{text}"\n}}\n'):
        error = (await gateway.http.post("/v1/chat/completions", content=body)).json()["error"]
        assert "half of a UTF-16 surrogate pair" in error["message"]
        assert error["code"] == "invalid_json"


async def test_a_truncated_body_is_called_truncated(gateway: RunningGateway) -> None:
    for body in ('{"model": "abc', '{"model": "\\u0041', '{"model": "\\ud83d\\ude00"'):
        error = (await gateway.http.post("/v1/chat/completions", content=body)).json()["error"]
        assert error["message"] == "the request body is not valid JSON: Input data was truncated"


async def test_the_content_type_does_not_matter(gateway: RunningGateway) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}]}'
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
        response = await gateway.http.post("/v1/chat/completions", content=body, headers={"content-type": content_type})
        assert response.status_code == 200


async def test_invalid_utf8_in_a_field_that_only_the_template_knows_is_refused(gateway: RunningGateway) -> None:
    body = b'{"messages": [{"role": "user", "content": "x", "extra": "\xff"}]}'
    response = await gateway.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"

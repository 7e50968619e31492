"""Structured output over the whole road, with the real model and the official client."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.stack import Stack

MESSAGES: Any = [{"role": "user", "content": "Invent a city. Answer in JSON."}]


Name = Annotated[str, Field(max_length=20)]  # a small model may not find the end of a longer one


class Mayor(BaseModel):
    name: Name
    since: int = Field(ge=1990, le=2025)


class City(BaseModel):
    name: Name
    kind: Literal["harbour", "mountain", "plain"]
    mayor: Mayor
    twins: list[Name] = Field(max_length=2)
    height: Annotated[int, Field(ge=0, le=4000)] | None


@pytest.fixture
def client(real_stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{real_stack.url}/v1", api_key="none", max_retries=0)


def test_the_official_client_parses_a_model_s_answer(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="default", messages=MESSAGES, response_format=City, seed=seed, max_tokens=400
        )
        city = answer.choices[0].message.parsed
        assert isinstance(city, City)
        assert 1990 <= city.mayor.since <= 2025


def test_streamed_and_whole_texts_are_the_same(client: openai.OpenAI) -> None:
    fields: Any = {"model": "default", "messages": MESSAGES, "seed": 5, "max_tokens": 60}
    for form in ({"regex": "[A-Z][a-z]{3,9}, [a-z]{3,9}"}, {"choice": ["Ålesund", "Bergen"]}, {"json_object": True}):
        body = {"structured_outputs": form}
        whole = client.chat.completions.create(**fields, extra_body=body).choices[0]
        stream = client.chat.completions.create(**fields, extra_body=body, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.message.content
        if "choice" in form:
            assert text in form["choice"]


def test_refusals_come_before_any_token(client: openai.OpenAI) -> None:
    schema = {"type": "array", "uniqueItems": True}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="default", messages=MESSAGES, response_format=form, stream=True)
    assert caught.value.param == "response_format.json_schema.schema"
    assert "uniqueItems" in json.dumps(caught.value.body)

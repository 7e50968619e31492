"""The forms of log-probabilities, and which request asks for what."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.gateway.api.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from services.gateway.scored import ScoredToken, TokenText, TopToken
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RunningGateway, events
from tests.gateway.support.stations import delta, end, first


def token(text: str, logprob: float | None, *top: tuple[str, float], data: bytes | None = None) -> ScoredToken:
    def of(text: str) -> TokenText:
        return TokenText(sum(text.encode()), text, text.encode() if data is None else data)

    return ScoredToken(of(text), logprob, 2, 7, [TopToken(of(text), logprob) for text, logprob in top])


def test_a_part_of_a_character_is_its_bytes() -> None:
    part = token("\\xe6\\x97", -0.5, data=b"\xe6\x97")
    [chat] = chat_logprobs([part])["content"]
    assert (chat["token"], chat["bytes"]) == ("\\xe6\\x97", [0xE6, 0x97])
    assert completion_logprobs([part], 0)["tokens"] == ["bytes:\\xe6\\x97"]


def test_an_id_without_a_token_has_a_text_of_its_own_and_no_bytes() -> None:
    padding = token("token_id:151700", -0.5, ("token_id:151700", -0.5), ("token_id:151701", -0.7), data=b"")
    [chat] = chat_logprobs([padding])["content"]
    assert (chat["token"], chat["bytes"]) == ("token_id:151700", [])
    assert completion_logprobs([padding], 2)["tokens"] == ["token_id:151700"]
    assert completion_logprobs([padding], 2)["top_logprobs"] == [{"token_id:151700": -0.5, "token_id:151701": -0.7}]


def test_the_token_itself_is_always_among_the_alternatives() -> None:
    scored = token("c", -5.0, ("a", -0.1), ("b", -3.0))
    assert completion_logprobs([scored], 1)["top_logprobs"] == [{"a": -0.1, "c": -5.0}]
    assert completion_logprobs([scored], 0)["top_logprobs"] == [{"c": -5.0}]
    [entry] = prompt_logprobs([scored], 1)
    assert entry == {
        str(ord("c")): {"logprob": -5.0, "rank": 2, "decoded_token": "c"},
        str(ord("a")): {"logprob": -0.1, "rank": 1, "decoded_token": "a"},
    }


def test_what_json_does_not_have() -> None:
    assert chat_logprobs([token("a", -math.inf)])["content"][0]["logprob"] == -9999.0
    assert completion_logprobs([token("a", None)], 1) == {
        "text_offset": [7],
        "token_logprobs": [None],
        "tokens": ["a"],
        "top_logprobs": [None],
    }
    assert prompt_logprobs([token("a", None)], 1) == [None]


def asked(gateway: RunningGateway) -> list[tuple[int | None, int | None, bool]]:
    """logprobs, prompt_logprobs and echo of all requests at the detokenizer."""
    return [
        (
            message.request.logprobs if message.request.HasField("logprobs") else None,
            message.request.prompt_logprobs if message.request.HasField("prompt_logprobs") else None,
            message.echo,
        )
        for message in gateway.stations.detokenizer.requests
    ]


async def test_fieldbug_34_what_a_chat_asks_for(gateway: RunningGateway) -> None:
    for fields in (
        {},
        {"logprobs": False, "top_logprobs": 0},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 3},
    ):
        assert (await gateway.chat(**fields)).status_code == 200
    assert (await gateway.chat(prompt_logprobs=2)).status_code == 200
    assert asked(gateway) == [
        (None, None, False),
        (None, None, False),
        (0, None, False),
        (3, None, False),
        (None, 2, False),
    ]


async def test_fieldbug_34_what_a_text_completion_asks_for(gateway: RunningGateway) -> None:
    given: list[dict[str, Any]] = [
        {},
        {"logprobs": 0},
        {"logprobs": 5, "echo": True},
        {"echo": True},
        {"logprobs": 2, "prompt_logprobs": 1, "echo": True},
        {"logprobs": 2, "prompt_logprobs": 4},
    ]
    for fields in given:
        assert (await gateway.complete(**fields)).status_code == 200
    assert asked(gateway) == [
        (None, None, False),
        (0, None, False),
        (5, 5, True),
        (None, None, True),
        (2, 2, True),
        (2, 4, False),
    ]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat", {"logprobs": 1}, "logprobs"),
        ("chat", {"top_logprobs": 1}, "top_logprobs"),
        ("chat", {"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("chat", {"echo": True}, "echo"),
        ("chat", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("text", {"logprobs": True}, "logprobs"),
        ("text", {"logprobs": 21}, "logprobs"),
        ("text", {"logprobs": -1}, "logprobs"),
        ("text", {"top_logprobs": 2}, "top_logprobs"),
        ("text", {"echo": 1}, "echo"),
        ("text", {"prompt_logprobs": True}, "prompt_logprobs"),
    ],
)
async def test_fieldbug_34_the_other_form_is_refused_by_name(
    gateway: RunningGateway, path: str, fields: dict[str, Any], param: str
) -> None:
    response = await (gateway.chat(**fields) if path == "chat" else gateway.complete(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_fieldbug_16_only_text_completions_take_max_tokens_0(gateway: RunningGateway) -> None:
    assert (await gateway.complete(max_tokens=0, echo=True)).status_code == 200
    assert gateway.stations.detokenizer.requests[-1].request.stop.max_tokens == 0
    for field in ("max_tokens", "max_completion_tokens"):
        assert (await gateway.chat(**{field: 0})).json()["error"]["param"] == field


def scored(message: detokenizer_pb2.TextDelta, *words: str) -> detokenizer_pb2.TextDelta:
    for word in words:
        message.tokens.add(id=len(word), token=word, bytes=word.encode(), logprob=-0.5, rank=1)
    return message


async def test_chunks_have_the_tokens_of_their_text(gateway: RunningGateway) -> None:
    async def script(*_: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield scored(first("Hello"), "Hel", "lo")
        yield scored(delta(" you"), " you")
        yield scored(end(""), "<end>")

    gateway.stations.detokenizer.script = script
    *chunks, done = events((await gateway.chat(stream=True, logprobs=True)).text)
    assert done == "[DONE]"
    given = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [None if one is None else [t["token"] for t in one["content"]] for one in given] == [
        None,
        ["Hel", "lo"],
        [" you"],
        ["<end>"],
    ]
    whole = (await gateway.chat(logprobs=True)).json()["choices"][0]
    assert whole["logprobs"]["content"] == [t for one in given if one for t in one["content"]]
    assert whole["message"]["content"] == "Hello you"

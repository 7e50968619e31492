from __future__ import annotations

from typing import Any

import pytest

from services.pb.postroad.v1 import tokenizer_pb2
from tests.gateway.support.running import RunningGateway, events


async def test_fieldbug_31_a_whole_completion(gateway: RunningGateway) -> None:
    response = await gateway.complete()
    answer = response.json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [{"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_fieldbug_35_a_streamed_completion(gateway: RunningGateway) -> None:
    *chunks, done = events((await gateway.complete(stream=True)).text)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "lo", " world", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


@pytest.mark.parametrize(
    ("prompt", "ids", "calls"),
    [("ab", [97, 98], 1), (["ab"], [97, 98], 1), ([5, 6, 7], [5, 6, 7], 0), ([[5, 6]], [5, 6], 0)],
)
async def test_every_form_of_one_prompt(gateway: RunningGateway, prompt: Any, ids: list[int], calls: int) -> None:
    assert (await gateway.complete(prompt)).status_code == 200
    [request] = gateway.stations.detokenizer.requests
    assert list(request.request.prompt_ids) == ids
    assert len(gateway.stations.tokenizer.requests) == calls


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        pytest.param("", "prompt", id="fieldbug_15_empty_text"),
        pytest.param([], "prompt", id="fieldbug_15_empty_list"),
        pytest.param([""], "prompt[0]", id="fieldbug_15_empty_text_in_list"),
        pytest.param(["a", ""], "prompt[1]", id="fieldbug_15_empty_text_among_others"),
        pytest.param([[]], "prompt[0]", id="fieldbug_15_empty_ids"),
        pytest.param(None, "prompt", id="null"),
        pytest.param([-1], "prompt[0]", id="fieldbug_13_negative_id"),
        pytest.param([3, 2**32], "prompt[1]", id="fieldbug_13_id_over_32_bits"),
        pytest.param([3, 10**30], "prompt[1]", id="fieldbug_13_id_over_64_bits"),
        pytest.param([[3, -1]], "prompt[0][1]", id="fieldbug_13_negative_id_in_list"),
        pytest.param([True], "prompt[0]", id="boolean"),
        pytest.param([1.5], "prompt[0]", id="fraction"),
        pytest.param([1, "a"], "prompt[1]", id="mixed"),
        pytest.param(["a", 1], "prompt[1]", id="text_and_id"),
        pytest.param(["a", [1]], "prompt[1]", id="text_and_ids"),
        pytest.param([[1], "a"], "prompt[1]", id="ids_and_text"),
        pytest.param([[1], 2], "prompt[1]", id="ids_and_id"),
        pytest.param({"a": 1}, "prompt", id="object"),
    ],
)
async def test_unusable_prompts_are_refused_by_their_place(gateway: RunningGateway, prompt: Any, param: str) -> None:
    response = await gateway.complete(prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not gateway.stations.detokenizer.requests


async def test_fieldbug_15_a_text_without_tokens_is_refused(gateway: RunningGateway) -> None:
    async def no_tokens(*_: Any) -> Any:
        return tokenizer_pb2.EncodeResponse(encodings=[tokenizer_pb2.TokenIds()])

    gateway.stations.tokenizer.Encode = no_tokens  # type: ignore[method-assign, assignment]
    await gateway.stations.tokenizer_host.kill()
    await gateway.stations.tokenizer_host.start()
    response = await gateway.complete("x")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


async def test_max_tokens_defaults_to_16_as_openai_does(gateway: RunningGateway) -> None:
    await gateway.complete()
    await gateway.complete(max_tokens=3)
    limits = [request.request.stop.max_tokens for request in gateway.stations.detokenizer.requests]
    assert limits == [16, 3]


async def test_add_special_tokens_reaches_the_tokenizer(gateway: RunningGateway) -> None:
    await gateway.complete("a", add_special_tokens=False)
    await gateway.complete("a")
    given, absent = gateway.stations.tokenizer.requests
    assert given.HasField("add_special_tokens")
    assert not given.add_special_tokens
    assert not absent.HasField("add_special_tokens")

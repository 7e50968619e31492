"""`best_of`: the choices that a client gets are the best of those that were generated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.gateway.api.best_of import best_choices
from services.gateway.api.choices import WholeChoice
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RunningGateway
from tests.gateway.support.stations import end, first

# By seed: the text, its tokens, and their log-probabilities together. Per token the order is 3, 1, 2, 0.
CANDIDATES = {0: ("zero", 2, -8.0), 1: ("one", 4, -4.0), 2: ("two", 1, -3.0), 3: ("three", 10, -5.0)}


def candidates(gateway: RunningGateway) -> None:
    async def script(
        request: detokenizer_pb2.GenerateTextRequest, context: Any
    ) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        text, tokens, logprob = CANDIDATES[request.request.sampling.seed]
        yield first(text)
        last = end(completion_tokens=tokens)
        if request.request.HasField("logprobs"):
            last.end.cumulative_logprob = logprob
        yield last

    gateway.stations.detokenizer.script = script


@pytest.mark.parametrize(
    ("n", "texts"), [(None, ["three"]), (2, ["three", "one"]), (4, ["zero", "one", "two", "three"])]
)
async def test_the_best_by_log_probability_per_token(gateway: RunningGateway, n: int | None, texts: list[str]) -> None:
    candidates(gateway)
    answer = (await gateway.complete(seed=0, n=n, best_of=4)).json()
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert {choice["logprobs"] for choice in answer["choices"]} == {None}
    assert answer["usage"]["completion_tokens"] == 17
    assert answer["usage"]["prompt_tokens"] == 5
    requests = gateway.stations.detokenizer.requests
    assert sorted(request.request.sampling.seed for request in requests) == [0, 1, 2, 3]
    compared = n != 4
    assert all(request.request.HasField("logprobs") == compared for request in requests)


async def test_each_prompt_has_its_best(gateway: RunningGateway) -> None:
    candidates(gateway)
    answer = (await gateway.complete(["a", "b"], seed=0, best_of=2, logprobs=1)).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "one"), (1, "one")]
    assert all(choice["logprobs"] is not None for choice in answer["choices"])
    assert {request.request.logprobs for request in gateway.stations.detokenizer.requests} == {1}


def test_equals_stay_in_order() -> None:
    choices = [WholeChoice(index, mean_logprob=-1.0) for index in range(3)]
    assert [choice.index for choice in best_choices(choices, of=3, count=2)] == [0, 1]
    assert best_choices(choices, of=1, count=1) is choices


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 2, "n": 3}, "best_of must be at least n, 3"),
        ({"best_of": 2, "stream": True}, "best_of must be n when stream is true"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 100, "prompt": ["a"] * 3}, "best_of must be at most 85 with 3 prompts"),
    ],
)
async def test_unusable_values(gateway: RunningGateway, fields: dict[str, Any], message: str) -> None:
    response = await gateway.complete(**{"prompt": "x", **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "best_of", "invalid_value")
    assert message in error["message"]


async def test_a_stream_with_nothing_to_choose(gateway: RunningGateway) -> None:
    response = await gateway.complete(stream=True, n=2, best_of=2)
    assert response.status_code == 200
    assert response.text.endswith("data: [DONE]\n\n")

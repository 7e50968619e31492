"""Several choices in one answer: n of each prompt, in order, each with its own end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.common.errors import ContextLengthExceeded, EngineFailed, InvalidArgument, PostroadError, QueueFull
from services.gateway.api.completions import MAX_PROMPTS
from services.gateway.api.parameters import MAX_CHOICES, MAX_N
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2
from tests.gateway.support.running import RunningGateway, events, until
from tests.gateway.support.stations import Script, delta, end, first

TextDeltas = AsyncIterator[detokenizer_pb2.TextDelta]


async def tell_apart(request: detokenizer_pb2.GenerateTextRequest, context: Any) -> TextDeltas:
    """Says the prompt and the seed, in as many deltas as the prompt has tokens; the first prompts end last."""
    ids = list(request.request.prompt_ids)
    yield first(f"seed {request.request.sampling.seed}:")
    for token_id in ids:
        for _ in range(200 - ids[0]):
            await asyncio.sleep(0)
        yield delta(f" {token_id}")
    cut = common_pb2.FINISH_REASON_LENGTH if ids[0] % 2 else common_pb2.FINISH_REASON_STOP
    usage = common_pb2.Usage(
        prompt_tokens=len(ids), completion_tokens=1 + len(ids), cached_tokens=request.request.sampling.seed % 10
    )
    yield detokenizer_pb2.TextDelta(end=detokenizer_pb2.TextEnd(finish_reason=cut, usage=usage))


PROMPTS = [[97], [100, 101], [103, 104, 105]]
TEXTS = [
    "seed 7: 97",
    "seed 8: 97",
    "seed 7: 100 101",
    "seed 8: 100 101",
    "seed 7: 103 104 105",
    "seed 8: 103 104 105",
]
REASONS = ["length", "length", "stop", "stop", "length", "length"]
USAGE = {
    "prompt_tokens": 1 + 2 + 3,
    "completion_tokens": 2 * (2 + 3 + 4),
    "total_tokens": 6 + 18,
    "prompt_tokens_details": {"cached_tokens": 3 * 7},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


@pytest.mark.parametrize("prompts", [PROMPTS, ["a", "de", "ghi"]])
async def test_fieldbug_33_choices_are_prompt_major_with_one_finish_reason_each(
    gateway: RunningGateway, prompts: Any
) -> None:
    gateway.stations.detokenizer.script = tell_apart
    answer = (await gateway.complete(prompts, n=2, seed=7)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == TEXTS
    assert [choice["finish_reason"] for choice in answer["choices"]] == REASONS
    assert answer["usage"] == USAGE
    assert len(gateway.stations.tokenizer.requests) <= 1, "the texts of a request are encoded together"
    await gateway.assert_idle()


async def test_fieldbug_33_a_stream_has_the_same_choices(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = tell_apart
    response = await gateway.complete(PROMPTS, n=2, seed=7, stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events(response.text)
    assert (last["choices"], last["usage"], done) == ([], USAGE, "[DONE]")
    texts, reasons, order = defaultdict(str), defaultdict(list), []
    for chunk in chunks:
        [choice] = chunk["choices"]
        assert choice["index"] not in reasons, "a choice is over after its finish reason"
        texts[choice["index"]] += choice["text"]
        order.append(choice["index"])
        if choice["finish_reason"] is not None:
            reasons[choice["index"]].append(choice["finish_reason"])
    assert [texts[index] for index in range(6)] == TEXTS
    assert [reasons[index] for index in range(6)] == [[reason] for reason in REASONS]
    assert order != sorted(order), "they come as they are generated"


async def test_fieldbug_33_35_each_choice_of_a_chat_names_its_role_once_and_first(gateway: RunningGateway) -> None:
    chunks = [chunk["choices"][0] for chunk in events((await gateway.chat(n=3, stream=True)).text)[:-1]]
    for index in range(3):
        own = [choice for choice in chunks if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in own] == ["assistant", None, None, None, None]
        assert [choice["finish_reason"] for choice in own] == [None, None, None, None, "stop"]
    answer = (await gateway.chat(n=3)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello world"}
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 6)


@pytest.mark.parametrize(
    ("seed", "sent"), [(5, [5, 6]), (None, [None, None]), (-1, [2**64 - 1, 0]), (2**63 - 1, [2**63 - 1, 2**63])]
)
async def test_seeds_count_up(gateway: RunningGateway, seed: int | None, sent: list[int | None]) -> None:
    await gateway.complete([1], n=2, seed=seed)
    found = [request.request.sampling for request in gateway.stations.detokenizer.requests]
    assert [sampling.seed if sampling.HasField("seed") else None for sampling in found] == sent


def one_fails(error: PostroadError, after: int) -> Script:
    """The prompt that begins with 2 fails after so many deltas; the others never end."""

    async def script(request: Any, context: Any) -> TextDeltas:
        if request.request.prompt_ids[0] != 2:
            yield first("x")
            await asyncio.Event().wait()
        for _ in range(after):
            yield first("y")
        raise error

    return script


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(QueueFull("full"), 429, "queue_full"), (EngineFailed("broken"), 503, "engine_failed")],
)
async def test_one_failing_run_ends_the_request(
    gateway: RunningGateway, error: PostroadError, status: int, code: str
) -> None:
    gateway.stations.detokenizer.script = one_fails(error, after=0)
    answer = await gateway.complete([[1], [2], [3]])
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    await gateway.assert_idle()


async def test_fieldbug_27_a_run_that_fails_in_mid_stream_ends_it_by_one_error_event(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = one_fails(EngineFailed("broken"), after=2)
    *chunks, last = events((await gateway.complete([[1], [2], [3]], stream=True)).text)
    assert last["error"]["code"] == "engine_failed"
    assert all("choices" in chunk for chunk in chunks)
    await gateway.assert_idle()


@pytest.mark.parametrize(
    ("error", "param", "message"),
    [
        (InvalidArgument("prompt_ids: 9 is too much", "prompt_ids"), "prompt[1]", "prompt[1]: 9 is too much"),
        (ContextLengthExceeded("the prompt is too long", "prompt_ids"), "prompt[1]", "the prompt is too long"),
        (InvalidArgument("seed: odd", "seed"), "seed", "seed: odd"),
    ],
)
async def test_an_error_names_the_prompt_that_it_is_about(
    gateway: RunningGateway, error: PostroadError, param: str, message: str
) -> None:
    gateway.stations.detokenizer.script = one_fails(error, after=0)
    answer = (await gateway.complete([[1], [2], [3]])).json()["error"]
    assert (answer["param"], answer["message"]) == (param, message)


@pytest.mark.parametrize(
    ("count", "place", "param"), [(1, "texts[0]", "prompt"), (3, "texts[1]", "prompt[1]"), (3, "texts", "prompt")]
)
async def test_an_error_of_the_tokenizer_names_the_text(
    gateway: RunningGateway, count: int, place: str, param: str
) -> None:
    async def refuse() -> None:
        raise InvalidArgument(f"{place}: odd", place)

    gateway.stations.tokenizer.before = refuse
    answer = (await gateway.complete(["x"] * count)).json()["error"]
    assert (answer["param"], answer["message"]) == (param, f"{param}: odd")


@pytest.mark.parametrize("stream", [True, False])
async def test_fieldbug_20_a_client_that_leaves_ends_all_runs(gateway: RunningGateway, stream: bool) -> None:
    async def endless(request: Any, context: Any) -> TextDeltas:
        yield first("x")
        await asyncio.Event().wait()

    gateway.stations.detokenizer.script = endless
    answer = asyncio.create_task(gateway.complete([[1], [2]], n=2, stream=stream))
    await until(lambda: gateway.stations.detokenizer.running == 4)
    answer.cancel()
    await gateway.assert_idle()
    await until(lambda: len(gateway.request_lines()) == 1)
    assert gateway.request_lines()[0]["outcome"] == "cancelled"


async def test_each_run_is_tried_once_more_by_itself(gateway: RunningGateway) -> None:
    failed: set[int] = set()

    async def fail_once_each(request: Any, context: Any) -> TextDeltas:
        [token_id] = request.request.prompt_ids
        if token_id not in failed:
            failed.add(token_id)
            raise EngineFailed("for a moment")
        yield end(str(token_id))

    gateway.stations.detokenizer.script = fail_once_each
    answer = (await gateway.complete([[1], [2], [3]])).json()
    assert [choice["text"] for choice in answer["choices"]] == ["1", "2", "3"]


async def test_the_number_of_choices_is_bounded(gateway: RunningGateway) -> None:
    most = MAX_CHOICES // 3
    for fields, param in (
        ({"n": MAX_N + 1}, "n"),
        ({"prompt": [[1]] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"prompt": ["x"] * 3, "n": most + 1}, "n"),
    ):
        answer = await gateway.complete(**fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not gateway.stations.detokenizer.requests
    assert not gateway.stations.tokenizer.requests
    assert len((await gateway.complete(["x"] * 3, n=most)).json()["choices"]) == 3 * most


async def test_the_log_line_has_the_whole_request(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = tell_apart
    await gateway.complete(PROMPTS, n=2, seed=7)
    await until(lambda: len(gateway.request_lines()) == 1)
    [line] = gateway.request_lines()
    assert (line["outcome"], line["choices"], line["prompt_tokens"], line["completion_tokens"]) == ("length", 6, 6, 18)


async def test_continuous_usage_counts_up_to_the_whole(gateway: RunningGateway) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await gateway.complete([[1, 2], [3]], n=2, stream=True, stream_options=options)
    chunks = events(response.text)[:-1]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 8)
    assert len(set(counts)) > 4
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks[:-3]} == {3}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]).count("world") == 4


async def test_continuous_usage_needs_no_usage_chunk(gateway: RunningGateway) -> None:
    chunks = events((await gateway.chat(stream=True, stream_options={"continuous_usage_stats": True})).text)[:-1]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 2, 2]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)

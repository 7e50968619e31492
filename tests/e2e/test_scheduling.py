"""Long prompts, shared prefixes and a KV pool that is too small."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import grpc
import pytest

from services.pb.postroad.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from tests.e2e.client import Client
from tests.support.stack import Stack

CHUNK = 256


def random_ids(seed: int, count: int) -> list[int]:
    """Ordinary token ids; those below 1,000 are special, single bytes and the like."""
    rng = random.Random(seed)
    return [rng.randrange(1000, 40000) for _ in range(count)]


def greedy(ids: list[int], max_tokens: int) -> engine_pb2.GenerateRequest:
    return engine_pb2.GenerateRequest(
        prompt_ids=ids,
        sampling=common_pb2.SamplingParams(temperature=0),
        stop=common_pb2.StopParams(max_tokens=max_tokens, ignore_eos=True),
    )


@pytest.fixture(scope="module")
def chunked_stack() -> Iterator[Stack]:
    with Stack(engine_flags=f"--dtype float32 --max-batch-tokens {CHUNK}") as stack:
        yield stack


async def test_a_prompt_of_4000_tokens_never_stops_running_streams(chunked_stack: Stack) -> None:
    """Every engine step between the long prompt's arrival and its first token has a token for each of the 8 streams."""
    async with grpc.aio.insecure_channel(chunked_stack.address("engine")) as channel:
        stub = engine_pb2_grpc.EngineStub(channel)
        frames = stub.OpenFrames(engine_pb2.OpenFramesRequest(peer="test"))
        session = (await frames.read()).session_id

        def start(handle: int, request: engine_pb2.GenerateRequest) -> asyncio.Task[object]:
            call = stub.GenerateFramed(
                engine_pb2.GenerateFramedRequest(session_id=session, handle=handle, request=request), timeout=240
            )
            return asyncio.ensure_future(call)

        running = [start(handle, greedy(random_ids(handle, 16), 2000)) for handle in range(8)]
        seen: set[int] = set()
        while len(seen) < 8:
            seen |= set((await frames.read()).handles)
        long = start(99, greedy(random_ids(99, 4000), 2))
        steps_with_all, first_token_seen = 0, False
        while not first_token_seen:
            frame = await frames.read()
            first_token_seen = 99 in frame.handles
            assert set(range(8)) <= set(frame.handles), f"step {frame.step} left streams out"
            assert sorted(h for h in frame.handles if h != 99) == list(range(8))
            steps_with_all += 1
        assert steps_with_all >= 4000 // CHUNK  # the prompt did go in chunks, each beside the 8 decodes
        for call in [*running, long]:
            call.cancel()
        await asyncio.gather(*running, long, return_exceptions=True)
        frames.cancel()
    async with Client(chunked_stack) as client:
        await client.wait_idle()


async def test_two_requests_that_share_a_prefix_and_arrive_together_compute_it_once(chunked_stack: Stack) -> None:
    shared = random_ids(500, 1000)
    async with Client(chunked_stack) as client:
        before = (await client.engine_read_out()).counters["computed_tokens"]
        bodies = [{"prompt": [*shared, *random_ids(501 + i, 20)], "max_tokens": 4, "temperature": 0} for i in range(2)]
        answers = await asyncio.gather(*(client.whole(**body) for body in bodies))
        computed = (await client.engine_read_out()).counters["computed_tokens"] - before
        cached = sorted(a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers)
        assert cached[0] == 0
        assert cached[1] >= 1000 - 16, cached  # whole pages of 16
        prompts = sum(a["usage"]["prompt_tokens"] for a in answers)
        assert prompts - cached[1] <= computed <= prompts - cached[1] + 2 * 4
        again = [await client.text(**body) for body in bodies]
        assert again == [a["choices"][0]["text"] for a in answers]  # warm equals cold


@pytest.fixture(scope="module")
def small_pool_stack() -> Iterator[Stack]:
    with Stack(engine_flags="--dtype float32 --num-pages 64") as stack:
        yield stack


async def test_fieldbug_38_sixteen_requests_in_a_pool_for_four_all_finish_right(
    real_stack: Stack, small_pool_stack: Stack
) -> None:
    """16 x (96 + 160) tokens need 256 pages of 16; the pool has 64."""
    bodies = [
        {"prompt": random_ids(100 + i, 96), "max_tokens": 160, "temperature": 0, "ignore_eos": True} for i in range(16)
    ]
    async with Client(small_pool_stack) as small, Client(real_stack) as large:
        answers = await asyncio.gather(*(small.whole(**body) for body in bodies))
        preemptions = (await small.engine_read_out()).counters["preemptions"]
        assert preemptions > 0
        assert all(a["usage"]["completion_tokens"] == 160 for a in answers)
        expected = await asyncio.gather(*(large.text(**body) for body in bodies))
        assert (await large.engine_read_out()).counters["preemptions"] == 0  # the right text: nothing was recomputed
        assert [a["choices"][0]["text"] for a in answers] == list(expected)
        await small.wait_idle()


async def test_fieldbug_17_a_request_that_can_never_fit_is_refused_with_both_numbers(small_pool_stack: Stack) -> None:
    async with Client(small_pool_stack) as client:
        for body in (
            {"prompt": random_ids(1, 1000), "max_tokens": 100},
            {"prompt": random_ids(1, 2000)},
            {"messages": [{"role": "user", "content": "word " * 2000}]},
        ):
            response = await client.post("/v1/chat/completions" if "messages" in body else "/v1/completions", **body)
            error = response.json()["error"]
            assert response.status_code == 400, error
            assert error["code"] == "context_length_exceeded"
            assert error["type"] == "invalid_request_error"
            assert "1024" in error["message"]
            assert str(2000 if "max_tokens" not in body and "prompt" in body else "") in error["message"]
            if "max_tokens" in body:
                assert "1100" in error["message"]
        assert len((await client.whole(prompt=random_ids(1, 500), max_tokens=2))["choices"]) == 1


async def test_fieldbug_37_cold_warm_partial_page_and_after_eviction_agree(
    real_stack: Stack, small_pool_stack: Stack
) -> None:
    body = {"prompt": random_ids(77, 203), "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    async with Client(small_pool_stack) as client:
        cold = await client.whole(**body)
        warm = await client.whole(**body)
        partial = await client.whole(**{**body, "prompt": body["prompt"] + random_ids(78, 3)})  # type: ignore[operator]
        for seed in range(8):  # push everything out of a pool of 1,024 tokens
            await client.whole(prompt=random_ids(200 + seed, 400), max_tokens=1, temperature=0)
        evicted = await client.whole(**body)
        cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (cold, warm, partial, evicted)]
        assert cached == [0, 192, 192, 0]
        texts = [a["choices"][0]["text"] for a in (cold, warm, evicted)]
        assert texts[0] == texts[1] == texts[2]
    async with Client(real_stack) as large:
        assert await large.text(**body) == texts[0]
        fresh = await large.text(**{**body, "prompt": body["prompt"] + random_ids(78, 3)})  # type: ignore[operator]
        assert fresh == partial["choices"][0]["text"]

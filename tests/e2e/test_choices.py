"""Several choices of several prompts through the real engine."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from tests.e2e.client import Client, text_of
from tests.support.stack import Stack

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]
BODY = {"max_tokens": 12, "temperature": 1, "top_p": 0.9}


@pytest.mark.parametrize("stream", [True, False])
async def test_fieldbug_33_each_choice_is_what_it_is_alone(real_stack: Stack, stream: bool) -> None:
    async with Client(real_stack) as client:
        alone = [client.text(prompt=prompt, seed=41 + repeat, **BODY) for prompt in PROMPTS for repeat in range(3)]
        expected = await asyncio.gather(*alone)
        body = {"prompt": PROMPTS, "n": 3, "seed": 41, **BODY}
        if stream:
            texts: dict[int, str] = defaultdict(str)
            async for event in client.events(**body):
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
            found = [texts[index] for index in sorted(texts)]
        else:
            found = [text_of(choice) for choice in (await client.whole(**body))["choices"]]
        assert found == expected
        assert len(set(expected)) == len(expected)
        await client.wait_idle()


async def test_the_choices_of_a_prompt_compute_it_once(real_stack: Stack) -> None:
    async with Client(real_stack) as client:
        before = (await client.engine_read_out()).counters["computed_tokens"]
        prompt = " ".join(str(number) for number in range(7000, 7200))
        answer = await client.whole(prompt=prompt, n=8, temperature=0, max_tokens=1)
        computed = (await client.engine_read_out()).counters["computed_tokens"] - before
        usage = answer["usage"]
        assert (usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (8, 0)
        assert computed < 1.5 * usage["prompt_tokens"]
        await client.wait_idle()


async def test_fieldbug_20_a_client_that_leaves_frees_all_choices(real_stack: Stack) -> None:
    async with Client(real_stack) as client:
        events = client.events(prompt="Count:", n=4, max_tokens=1000, ignore_eos=True)
        seen: set[int] = set()
        while len(seen) < 4:
            seen |= {choice["index"] for choice in (await anext(events))["choices"]}
        await events.aclose()
        await client.wait_idle()

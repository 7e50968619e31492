"""Many streams at once, of every kind, with some that leave and some that are refused: nobody notices the others."""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import Any

import pytest

from tests.e2e.client import Client, path_of, user
from tests.e2e.folding import folded
from tests.e2e.random_requests import INVALID_CHATS, Body, valid_request
from tests.e2e.test_disconnects import Rude
from tests.support.stack import Stack

STREAMS, LEAVING = 200, 40  # and as many refused as there are INVALID_CHATS: 20


async def answer(client: Client, body: Body) -> dict[str, Any]:
    """The stream put together, without what depends on the prefix cache."""
    events = [event async for event in client.events(**body, stream_options={"include_usage": True})]
    whole = folded(events)
    del whole["usage"]["prompt_tokens_details"]
    return whole


async def leave(client: Client, random: Random) -> None:
    """Goes away in the middle of the request, or of a long answer."""
    body = valid_request(random) | {"stream": True, "max_tokens": 1000, "ignore_eos": True}
    events = random.randint(-1, 4)
    async with Rude(client.stack) as rude:
        if events < 0:
            await rude.send(path_of(body), body, share=0.5)
        else:
            await rude.send(path_of(body), body)
            await rude.read_events(events)


async def refusal(client: Client, body: Body) -> tuple[int, str | None]:
    """The status and the field that is at fault."""
    response = await client.post(path_of(body), **body, stream=True)
    return response.status_code, response.json()["error"]["param"]


def are_equal(one: Any, other: Any) -> bool:
    """To 1e-4 in log-probabilities: a prompt in the prefix cache and one out of it are computed in other pieces."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return math.isclose(one, other, abs_tol=1e-4) if isinstance(one, float) else one == other


@pytest.mark.parametrize(("seed", "distinct"), [(1, 30), pytest.param(2, 140, marks=pytest.mark.slow)])
async def test_200_streams_of_which_some_leave_and_some_are_refused(
    real_stack: Stack, seed: int, distinct: int
) -> None:
    """Each of the others gets what it gets alone. `distinct`: requests that they are taken from."""
    random = Random(seed)
    bodies = [valid_request(random) for _ in range(distinct)]
    invalid = {param: {"messages": user("hi"), "max_tokens": 4} | change for param, change in INVALID_CHATS.items()}
    staying = [index % distinct for index in range(STREAMS - LEAVING - len(invalid))]
    async with Client(real_stack) as client:
        alone = [await answer(client, body) for body in bodies]
        calls: list[Any] = [answer(client, bodies[index]) for index in staying]
        calls += [refusal(client, body) for body in invalid.values()]
        calls += [leave(client, random) for _ in range(LEAVING)]
        order = random.sample(range(STREAMS), STREAMS)
        tasks = {place: asyncio.create_task(calls[place]) for place in order}
        results = [await tasks[place] for place in range(STREAMS)]
        for index, result in zip(staying, results, strict=False):
            assert are_equal(result, alone[index]), bodies[index]
        assert results[len(staying) : -LEAVING] == [(400, param) for param in invalid]
        await client.wait_idle()

"""A streamed answer put together is the whole one, field by field."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.client import Client
from tests.e2e.folding import comparable, folded
from tests.e2e.sixty_requests import REAL, SCRIPTED, Bodies
from tests.support.stack import Stack

AT_A_TIME = 12

Pairs = dict[str, tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture(scope="module")
def real_pairs(real_stack: Stack) -> Pairs:
    return asyncio.run(pairs(real_stack, REAL))


@pytest.fixture(scope="module")
def scripted_pairs(tool_stack: Stack) -> Pairs:
    return asyncio.run(pairs(tool_stack, SCRIPTED))


async def pairs(stack: Stack, bodies: Bodies) -> Pairs:
    """The whole answer and the events of the stream, put together, of each request."""
    slots = asyncio.Semaphore(AT_A_TIME)
    async with Client(stack) as client:

        async def pair(name: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            async with slots:
                whole = {key: value for key, value in body.items() if key != "stream_options"}
                answer = await client.whole(**whole, cache_salt=f"{name}, whole")  # neither finds the other's prefix
            async with slots:
                stream = {"stream_options": {"include_usage": True}} | body
                events = [event async for event in client.events(**stream, cache_salt=f"{name}, streamed")]
            return comparable(answer), folded(events)

        answers = await asyncio.gather(*(pair(name, body) for name, body in bodies.items()))
        await client.wait_idle()
    return dict(zip(bodies, answers, strict=True))


def test_there_are_sixty() -> None:
    assert len(REAL) + len(SCRIPTED) == 60


@pytest.mark.parametrize("name", REAL)
def test_the_real_model_s_answer(real_pairs: Pairs, name: str) -> None:
    whole, streamed = real_pairs[name]
    assert streamed == whole


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_scripted_answer(scripted_pairs: Pairs, name: str) -> None:
    whole, streamed = scripted_pairs[name]
    assert streamed == whole

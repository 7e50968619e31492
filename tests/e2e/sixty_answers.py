"""What a stack answers to the sixty requests: each whole and streamed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tests.e2e.client import Client, path_of
from tests.e2e.sixty_requests import Bodies
from tests.support.stack import Stack

AT_A_TIME = 12


@dataclass(frozen=True, slots=True)
class Answered:
    """One request's whole answer, and the data of its stream's events."""

    operation: str
    whole: dict[str, Any]
    events: list[dict[str, Any]]


def answers(stack: Stack, bodies: Bodies) -> dict[str, Answered]:
    """By the requests' names."""
    return asyncio.run(_answers(stack, bodies))


async def _answers(stack: Stack, bodies: Bodies) -> dict[str, Answered]:
    slots = asyncio.Semaphore(AT_A_TIME)
    async with Client(stack) as client:

        async def both(name: str, body: dict[str, Any]) -> Answered:
            async with slots:
                plain = {key: value for key, value in body.items() if key != "stream_options"}
                whole = await client.whole(**plain, cache_salt=f"{name}, whole")  # neither finds the other's prefix
            async with slots:
                stream = {"stream_options": {"include_usage": True}} | body
                events = [event async for event in client.events(**stream, cache_salt=f"{name}, streamed")]
            return Answered(f"POST {path_of(body)}", whole, events)

        found = await asyncio.gather(*(both(name, body) for name, body in bodies.items()))
        await client.wait_idle()
    return dict(zip(bodies, found, strict=True))

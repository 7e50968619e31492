"""Streams that run while something is done to the road, and how they have to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.e2e.client import Client, Streamed, user

STREAMS = 32
ENDS_WITHIN = 5  # seconds that an affected request may take to end
LONGER_THAN_A_TEST = 2000  # tokens
Task = asyncio.Task[Streamed]


@asynccontextmanager
async def running_streams(
    *clients: Client, count: int = STREAMS, tokens: int = LONGER_THAN_A_TEST
) -> AsyncIterator[list[Task]]:
    """Streams that run and have shown text each, the clients in turn; what is left of them is cancelled at the end."""
    started = [asyncio.Event() for _ in range(count)]
    body = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    tasks = [
        asyncio.create_task(
            clients[i % len(clients)].stream(
                messages=user(f"Story {i}"),
                on_delta=lambda _, e=event: e.set(),  # type: ignore[misc]
                **body,
            )
        )
        for i, event in enumerate(started)
    ]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(event.wait() for event in started))
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ends(tasks: Sequence[Task], within: float = ENDS_WITHIN) -> list[Streamed | BaseException]:
    """How each stream ended, within so many seconds. Fails when one of them hangs."""
    done, left = await asyncio.wait(tasks, timeout=within)
    assert not left, f"{len(left)} of {len(tasks)} streams hang"
    return [task.exception() or task.result() for task in done]


async def all_end_with_an_error_frame(tasks: Sequence[Task]) -> None:
    """Each stream that runs, behind the text that it had."""
    begin = time.monotonic()
    for result in await ends(tasks):
        assert is_error_frame(result), result
    print(f"\nnoticed after {time.monotonic() - begin:.1f} s")


def is_error_frame(result: Streamed | BaseException) -> bool:
    """Whether a stream ended, behind its text, by an error that says something, and by nothing after it."""
    return (
        isinstance(result, Streamed)
        and bool(result.text)
        and result.error is not None
        and bool(result.error["message"])
        and bool(result.error["type"])
        and not result.done
    )


def is_whole(result: Streamed | BaseException, tokens: int) -> bool:
    """Whether a stream came to its own end, with all its tokens."""
    return (
        isinstance(result, Streamed)
        and result.done
        and result.error is None
        and result.usage is not None
        and result.usage["completion_tokens"] == tokens
    )

"""Waiting for a condition on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

WAIT_SECONDS = 20.0


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Returns when the condition holds; it may be a coroutine function. Raises TimeoutError."""

    async def holds() -> bool:
        value = condition()
        return value if isinstance(value, bool) else await value

    async with asyncio.timeout(WAIT_SECONDS):
        while not await holds():  # noqa: ASYNC110 what is waited for may lie in another process or thread
            await asyncio.sleep(0.002)

"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a stream, with what it raised."""

    error: Exception | None = None


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of all streams as they come; those of one stream stay in order.

    The first error of a stream closes the others and is raised. Closing the generator closes all streams. A consumer
    that is slow slows the streams down: at most one item of each, on average, waits here.
    """
    items: asyncio.Queue[T | _End] = asyncio.Queue(len(streams))
    tasks = [asyncio.create_task(_pump(stream, items)) for stream in streams]
    running = len(tasks)
    try:
        while running:
            item = await items.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[T, None], items: asyncio.Queue[T | _End]) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await items.put(item)
    except Exception as error:
        await items.put(_End(error))
    else:
        await items.put(_End())

"""Many calls of one kind, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def map_bounded(work: Callable[[A], Awaitable[T]], items: Sequence[A], at_once: int) -> list[T]:
    """The results in the order of the items; at most `at_once` are in the making.

    The first error cancels what runs and is raised.
    """
    results: dict[int, T] = {}
    left = iter(enumerate(items))

    async def worker() -> None:
        for index, item in left:
            results[index] = await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[index] for index in range(len(items))]

from __future__ import annotations

import asyncio

import pytest

from services.gateway.bounded import map_bounded


async def test_results_keep_the_order_of_the_items_and_few_are_in_the_making() -> None:
    running = most = 0

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(item % 3):
            await asyncio.sleep(0)
        running -= 1
        return 2 * item

    assert await map_bounded(work, list(range(20)), 4) == [2 * item for item in range(20)]
    assert most == 4
    assert await map_bounded(work, [], 4) == []


async def test_the_first_error_cancels_the_rest_and_is_raised_as_it_is() -> None:
    cancelled: list[int] = []

    async def work(item: int) -> None:
        if item == 2:
            raise KeyError("two")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    with pytest.raises(KeyError, match="two"):
        await map_bounded(work, list(range(9)), 3)
    assert sorted(cancelled) == [0, 1]


async def test_cancelling_it_cancels_what_runs() -> None:
    cancelled: list[int] = []

    async def work(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    whole = asyncio.create_task(map_bounded(work, list(range(9)), 3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert sorted(cancelled) == [0, 1, 2]

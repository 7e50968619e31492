from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from services.gateway.merging import merge


class Source:
    """Streams whose items a test lets go one by one."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.taken: list[str] = []

    async def stream(self, name: str, count: int, error: Exception | None = None) -> AsyncGenerator[str, None]:
        try:
            for number in range(count):
                self.taken.append(name)
                yield f"{name}{number}"
            if error is not None:
                raise error
            if count == 0:
                await asyncio.Event().wait()
        finally:
            self.closed.append(name)


async def test_all_items_come_and_those_of_one_stream_in_order() -> None:
    source = Source()
    items = [item async for item in merge([source.stream("a", 3), source.stream("b", 5), source.stream("c", 1)])]
    assert sorted(items) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4", "c0"]
    assert [item for item in items if item[0] == "b"] == ["b0", "b1", "b2", "b3", "b4"]
    assert sorted(source.closed) == ["a", "b", "c"]


async def test_the_first_error_is_raised_and_closes_the_others() -> None:
    source = Source()
    with pytest.raises(ValueError, match="odd"):
        [item async for item in merge([source.stream("a", 0), source.stream("b", 1, ValueError("odd"))])]
    assert sorted(source.closed) == ["a", "b"]


async def test_closing_closes_all() -> None:
    source = Source()
    async with aclosing(merge([source.stream("a", 0), source.stream("b", 9), source.stream("c", 9)])) as items:
        await anext(items)
    assert sorted(source.closed) == ["a", "b", "c"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_consumer_closes_all() -> None:
    source = Source()

    async def consume() -> None:
        async with aclosing(merge([source.stream("a", 0), source.stream("b", 0)])) as items:
            await anext(items)

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


async def test_a_slow_consumer_slows_the_streams_down() -> None:
    source = Source()
    async with aclosing(merge([source.stream("a", 100), source.stream("b", 100)])) as items:
        await anext(items)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(source.taken) < 10

"""Counting requests, and waiting for their end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from services.common.errors import Draining
from services.common.live_requests import LiveRequests
from tests.support.polling import WAIT_SECONDS


async def test_requests_count_from_arrival_to_end() -> None:
    live = LiveRequests()
    with live.enter():
        with live.enter():
            assert len(live) == 2
        assert len(live) == 1
    assert len(live) == 0


async def test_a_failed_and_a_cancelled_request_are_gone_too() -> None:
    live = LiveRequests()
    with pytest.raises(ZeroDivisionError), live.enter():
        raise ZeroDivisionError

    async def request() -> None:
        with live.enter():
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    assert len(live) == 1
    task.cancel()
    await asyncio.wait([task])
    assert len(live) == 0


@pytest.mark.parametrize("seconds", [0, WAIT_SECONDS])
async def test_an_idle_station_is_drained_at_once(seconds: float) -> None:
    assert await LiveRequests().drain(seconds)


async def test_a_drain_lasts_until_the_last_request_ended() -> None:
    live = LiveRequests()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(live.enter())
        second.enter_context(live.enter())
        drain = asyncio.create_task(live.drain(WAIT_SECONDS))
        first.close()
        await asyncio.sleep(0)
        assert not drain.done()
        second.close()
        assert await drain


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_drain_that_times_out_says_so_and_counts_on(seconds: float) -> None:
    live = LiveRequests()
    with live.enter():
        assert not await live.drain(seconds)
        assert len(live) == 1
    assert len(live) == 0
    assert await live.drain(seconds)


async def test_nothing_enters_once_a_drain_began() -> None:
    live = LiveRequests()
    with live.enter():
        await live.drain(0)
        with pytest.raises(Draining), live.enter():
            pytest.fail("entered")
        assert len(live) == 1
    with pytest.raises(Draining), live.enter():
        pytest.fail("entered an empty station")

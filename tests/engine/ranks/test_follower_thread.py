"""The thread of a rank that does not lead: whether it hangs is found out by asking it to leave its group."""

from __future__ import annotations

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry

from services.engine.errors import StartupError
from services.engine.ranks.follower_thread import FollowerListener, FollowerThread
from services.engine.ranks.metrics import FollowerMetrics


class NotingListener(FollowerListener):
    def __init__(self) -> None:
        self.death: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def on_death(self, error: BaseException) -> None:
        self.death.set_result(error)


async def test_a_thread_that_hangs_does_not_leave_in_time() -> None:
    goes_on = threading.Event()

    def hang_then_fail() -> None:
        goes_on.wait()
        raise StartupError("the weights are gone")

    listener = NotingListener()
    thread = FollowerThread(hang_then_fail, listener, FollowerMetrics(CollectorRegistry()))  # type: ignore[arg-type]
    thread.start()
    try:
        assert not await thread.leave(seconds=0.05)
    finally:
        goes_on.set()
    with pytest.raises(StartupError, match="the weights are gone"):
        raise await listener.death

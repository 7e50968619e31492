"""Threads for work that would hold up the event loop, with a bound on what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from services.common.errors import QueueFull
from services.tokenizer.memory import give_back_memory

LONG_JOB_BYTES = 64 * 1024  # takes about 25 ms; below that a job never waits for a longer one
T = TypeVar("T")


class WorkerPool:
    """Runs jobs on `threads` threads for short ones and as many for long ones: no short job waits for long ones.

    A job counts as pending until its thread is done with it, also when nobody waits for the result any more. Used from
    one event loop; `close` belongs to the same loop.
    """

    def __init__(self, threads: int, max_pending: int, max_pending_bytes: int) -> None:
        self._short = ThreadPoolExecutor(threads, "short")
        self._long = ThreadPoolExecutor(threads, "long")
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._pending = 0
        self._pending_bytes = 0

    @property
    def pending(self) -> int:
        """Jobs that wait or run."""
        return self._pending

    async def run(self, size: int, job: Callable[[], T]) -> T:
        """Runs `job`, whose input has `size` bytes, and returns its result.

        Raises QueueFull when too much is pending; a job larger than the whole bound runs when it is the only one.
        Cancelling takes a job that has not begun out of the queue.
        """
        if self._pending and (
            self._pending >= self._max_pending or self._pending_bytes + size > self._max_pending_bytes
        ):
            raise QueueFull(f"{self._pending} requests are being tokenised already; try again later")
        self._pending += 1
        self._pending_bytes += size
        is_long = size > LONG_JOB_BYTES
        future = self._long.submit(_run_long, job) if is_long else self._short.submit(job)
        future.add_done_callback(partial(self._done, asyncio.get_running_loop(), size))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Waits for the running jobs; drops the others."""
        for executor in (self._short, self._long):
            executor.shutdown(cancel_futures=True)

    def _done(self, loop: asyncio.AbstractEventLoop, size: int, _: Future[T]) -> None:
        # Called on whichever thread ended the job.
        loop.call_soon_threadsafe(self._release, size)

    def _release(self, size: int) -> None:
        self._pending -= 1
        self._pending_bytes -= size


def _run_long(job: Callable[[], T]) -> T:
    try:
        return job()
    finally:
        give_back_memory()

"""The bound on pending work, and that short jobs do not wait for long ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from services.common.errors import QueueFull
from services.tokenizer.worker_pool import LONG_JOB_BYTES, WorkerPool
from tests.support.polling import WAIT_SECONDS, until

LONG = LONG_JOB_BYTES + 1


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds jobs until it is set."""
    event = threading.Event()
    yield event
    event.set()


def held_by(gate: threading.Event) -> Callable[[], bool]:
    return lambda: gate.wait(WAIT_SECONDS)


async def test_results_and_errors_come_back() -> None:
    pool = WorkerPool(1, 2, 100)
    assert await pool.run(1, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await pool.run(1, lambda: 1 // 0)
    await until(lambda: pool.pending == 0)
    pool.close()


async def test_short_jobs_do_not_wait_for_long_ones(gate: threading.Event) -> None:
    pool = WorkerPool(1, 10, 10 * LONG)
    long_jobs = [asyncio.create_task(pool.run(LONG, held_by(gate))) for _ in range(3)]
    await until(lambda: pool.pending == 3)
    assert await pool.run(1, lambda: "short") == "short"
    gate.set()
    assert await asyncio.gather(*long_jobs) == [True] * 3
    pool.close()


async def test_too_many_jobs_are_refused(gate: threading.Event) -> None:
    pool = WorkerPool(1, 2, 1000)
    held = [asyncio.create_task(pool.run(1, held_by(gate))) for _ in range(2)]
    await until(lambda: pool.pending == 2)
    with pytest.raises(QueueFull):
        await pool.run(1, lambda: None)
    gate.set()
    await asyncio.gather(*held)
    await until(lambda: pool.pending == 0)
    assert await pool.run(1, lambda: 7) == 7
    pool.close()


async def test_too_large_jobs_are_refused_unless_alone(gate: threading.Event) -> None:
    pool = WorkerPool(1, 10, 100)
    alone = asyncio.create_task(pool.run(500, held_by(gate)))
    await until(lambda: pool.pending == 1)
    with pytest.raises(QueueFull):
        await pool.run(1, lambda: None)
    gate.set()
    assert await alone
    pool.close()


async def test_a_cancelled_job_counts_until_its_thread_is_done(gate: threading.Event) -> None:
    pool = WorkerPool(1, 10, 100)
    begun = threading.Event()
    running = asyncio.create_task(pool.run(1, lambda: begun.set() or gate.wait(WAIT_SECONDS)))
    await until(begun.is_set)
    never_run = threading.Event()
    waiting = asyncio.create_task(pool.run(1, never_run.set))
    await until(lambda: pool.pending == 2)
    waiting.cancel()
    running.cancel()
    await asyncio.gather(waiting, running, return_exceptions=True)
    await until(lambda: pool.pending == 1)
    gate.set()
    await until(lambda: pool.pending == 0)
    assert not never_run.is_set()
    pool.close()

"""Threads of a step keep to a CPU each, where there is one for each, and give that up while others need the CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import postroad_native
import pytest

from tests.engine.models.reference import FAMILIES
from tests.engine.native.stepping import native_model, plan, step

TWO_CPUS = set(sorted(os.sched_getaffinity(0))[:2])
PATIENCE = 60.0  # seconds

pytestmark = pytest.mark.skipif(len(TWO_CPUS) < 2, reason="needs two CPUs")


@pytest.fixture(autouse=True)
def _two_cpus() -> Iterator[None]:
    """This thread, and what it makes, has no more, however large the machine."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, TWO_CPUS)
    yield
    os.sched_setaffinity(0, before)


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def _model(threads: int) -> tuple[postroad_native.Model, set[int]]:
    """A model, and the threads that it made: of its pool, and one that gets its memory ready."""
    before = _threads()
    model = native_model(FAMILIES["llama"], threads=threads)
    return model, _threads() - before


def _affinities(threads: set[int]) -> list[set[int]]:
    """Of those that still live."""
    return [os.sched_getaffinity(thread) for thread in threads & _threads()]


def _step_until(model: postroad_native.Model, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        step(model, plan([1, 2, 3], [0]))


def test_as_many_threads_as_cpus_have_a_cpu_each() -> None:
    model, threads = _model(2)
    second = {max(TWO_CPUS)}  # the first one is for the thread that calls
    _step_until(model, lambda: second in _affinities(threads))
    assert os.sched_getaffinity(0) == TWO_CPUS  # which is bound only during the step


def test_fewer_threads_than_cpus_run_anywhere() -> None:
    model, threads = _model(1)
    step(model, plan([1, 2, 3], [0]))
    assert all(cpus == TWO_CPUS for cpus in [os.sched_getaffinity(0), *_affinities(threads)])


def test_threads_that_lack_time_are_set_free_until_they_have_it_again() -> None:
    model, threads = _model(2)

    def bound() -> bool:
        return min(map(len, _affinities(threads))) == 1

    _step_until(model, bound)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        _step_until(model, lambda: not bound())
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    _step_until(model, bound)

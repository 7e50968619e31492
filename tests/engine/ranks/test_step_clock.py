"""When the clock of steps calls, and when it does not. Marks are set by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from services.engine.executor.transfers import Mark
from services.engine.ranks.step_clock import StepClock

LONG = 60.0  # seconds, of a step that is not late
SHORT = 0.05


class HandMark(Mark):
    """A place that a device reaches when it is told to."""

    def __init__(self) -> None:
        self._reached = threading.Event()

    def is_reached(self) -> bool:
        return self._reached.is_set()

    def reach(self) -> None:
        self._reached.set()


class Calls:
    def __init__(self) -> None:
        self.expired = threading.Event()
        self.given_up = threading.Event()
        self.goes_on = threading.Event()

    def clock(self, seconds: float, *, expire_hangs: bool = False) -> StepClock:
        def end() -> None:
            if expire_hangs:
                self.goes_on.wait()

        def expire() -> Callable[[], None]:
            self.expired.set()
            return end

        return StepClock(seconds, expire, grace=SHORT, give_up=self.given_up.set)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_step_that_is_late_is_called_out_and_what_is_left_in_time_is_not_given_up(calls: Calls) -> None:
    clock = calls.clock(SHORT)
    late = clock.begin()  # nothing is launched yet: the launch may hang
    assert calls.expired.wait(LONG)
    clock.forget()
    assert late.is_over
    calls.expired.clear()
    clock.begin()
    assert calls.expired.wait(LONG)  # it goes on for the next group
    clock.forget()


def test_steps_that_are_over_are_not_late(calls: Calls) -> None:
    clock, mark = calls.clock(SHORT), HandMark()
    by_mark, by_result, late = clock.begin(LONG), clock.begin(), clock.begin()
    by_mark.ends_at(mark)
    by_result.end()
    assert not calls.expired.wait(3 * SHORT)  # the time of a step begins with the end of the one before it
    mark.reach()
    assert calls.expired.wait(LONG)
    assert not late.is_over
    clock.forget()


@pytest.mark.parametrize("expire_hangs", [True, False])
def test_a_thread_that_does_not_get_out_is_given_up(calls: Calls, expire_hangs: bool) -> None:
    """Because the group does not end, or because it does and the thread hangs all the same."""
    clock = calls.clock(SHORT, expire_hangs=expire_hangs)
    clock.begin()
    assert calls.given_up.wait(LONG)
    calls.goes_on.set()
    clock.forget()


def test_what_is_forgotten_is_not_late(calls: Calls) -> None:
    clock = calls.clock(SHORT)
    clock.begin()
    clock.forget()
    assert not calls.expired.wait(3 * SHORT)

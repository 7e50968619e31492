"""Keeps the time of steps on a device whose collectives wait for ever: whoever waits for a device sees no clock."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from services.engine.executor.transfers import Mark

_LOOK_SECONDS = 0.02  # from one look at the marks to the next
_GRACE_SECONDS = 10.0  # for the group's end


def end_process() -> None:
    """What cannot be repaired from inside is left to whoever restarts processes."""
    os._exit(1)


class TimedStep:
    """A step that is being launched, or runs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # that it may take
        self._mark: Mark | None = None
        self._is_over = False

    def ends_at(self, mark: Mark) -> None:
        """It is launched, and over where the mark is."""
        self._mark = mark

    def end(self) -> None:
        """Its result is read, or it is given up."""
        self._is_over = True

    @property
    def is_over(self) -> bool:
        return self._is_over or (self._mark is not None and self._mark.is_reached())


class StepClock:
    """Notices in a thread of its own when a step takes longer than it may, from its begin or from the end of the one
    before it, whichever is later. Then no step is timed until all are forgotten."""

    def __init__(
        self,
        seconds: float,
        expire: Callable[[], Callable[[], None]],
        *,
        grace: float = _GRACE_SECONDS,
        give_up: Callable[[], None] = end_process,
    ) -> None:
        """`expire` is called when a step is late, and takes no time; what it returns is to make the steps end. If that
        has not returned after `grace` seconds, or the steps have not been forgotten, `give_up` is called: the thread
        that launched them hangs."""
        self._seconds = seconds
        self._expire = expire
        self._grace = grace
        self._give_up = give_up
        self._steps: deque[TimedStep] = deque()
        self._since = 0.0  # when the first of them had the device to itself
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="step-clock", daemon=True).start()

    def begin(self, seconds: float | None = None) -> TimedStep:
        """To be called before the step is launched: a launch may hang, too. `seconds` for one that may take longer."""
        step = TimedStep(self._seconds if seconds is None else seconds)
        with self._changed:
            if not self._steps:
                self._since = time.monotonic()
            self._steps.append(step)
            self._changed.notify()
        return step

    def forget(self) -> None:
        """The group is left, and whatever ran in it is given up."""
        with self._changed:
            for step in self._steps:
                step.end()
            self._steps.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._steps)
                expired = self._look()
                end = self._expire() if expired else None
            if end is not None:
                self._end_steps(expired, end)
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> list[TimedStep]:
        """All steps, if the first has taken too long."""
        while self._steps and self._steps[0].is_over:
            self._steps.popleft()
            self._since = time.monotonic()
        if self._steps and time.monotonic() - self._since > self._steps[0].seconds:
            return list(self._steps)
        return []

    def _end_steps(self, steps: list[TimedStep], end: Callable[[], None]) -> None:
        has_returned = threading.Event()

        def give_up_unless_over() -> None:
            if not has_returned.is_set() or not all(step.is_over for step in steps):
                self._give_up()

        last_resort = threading.Timer(self._grace, give_up_unless_over)
        last_resort.daemon = True
        last_resort.start()
        end()
        has_returned.set()
        while not all(step.is_over for step in steps):
            time.sleep(_LOOK_SECONDS)
        last_resort.cancel()

"""Fewer, larger messages under load.

The cost of a stream lies in its messages, not in their size. With many streams a message is worth waiting for; with
few, every token goes at once.

What has waited long enough leaves with the next token, together with what the same step brings to other streams. A
timer of its own would wake the station between two tokens for less text, and stop a thread of the step that computes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

PACED_FROM = 16  # live streams; below that the processor has time for a message per token
_PATIENCE = 2.0  # intervals after which text leaves without a token that takes it along
_GRANULARITY = 0.002  # seconds: what is due this soon goes now, so that one step or one timer serves many streams

Release = Callable[[], None]
Clock = Callable[[], float]


class Hold:
    """What keeps a stream from sending, from a message on. It is over once, by a token or by the pacer's timer."""

    __slots__ = ("_clock", "_due", "_release", "expires", "is_over")

    def __init__(self, due: float, expires: float, release: Release, clock: Clock) -> None:
        """Times are seconds of `clock`."""
        self.expires = expires
        self.is_over = False
        self._due = due
        self._release = release
        self._clock = clock

    def on_token(self) -> bool:
        """Whether the hold is over now that a token has come."""
        if not self.is_over and self._clock() >= self._due:
            self.is_over = True
        return self.is_over

    def expire(self) -> None:
        """Ends it by calling `release`, if it is not over."""
        if not self.is_over:
            self.is_over = True
            self._release()


class Pacer:
    """Holds streams back for `interval` seconds after each of their messages while `live()` is at least PACED_FROM.

    From then on the next token ends a hold, and time does so after a second interval. All holds last equally long, so
    their times end in the order in which they began: one queue and one timer serve all streams.
    """

    def __init__(self, interval: float, live: Callable[[], int], clock: Clock = time.monotonic) -> None:
        self._interval = interval
        self._live = live
        self._clock = clock
        self._holds: deque[Hold] = deque()  # those that are over stay until they are the first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Holds that are not over."""
        return sum(not hold.is_over for hold in self._holds)

    def hold(self, release: Release) -> Hold | None:
        """After a message: what the next one has to wait for, if it has to. `release` is called when time ends it."""
        if self._interval == 0 or self._live() < PACED_FROM:
            return None
        now = self._clock()
        hold = Hold(now + self._interval - _GRANULARITY, now + self._interval * _PATIENCE, release, self._clock)
        self._holds.append(hold)
        if self._timer is None:
            self._arm(hold.expires - now)
        return hold

    def _arm(self, delay: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        expired: list[Hold] = []
        while self._holds and (self._holds[0].is_over or self._holds[0].expires <= now + _GRANULARITY):
            expired.append(self._holds.popleft())
        if self._holds:
            self._arm(self._holds[0].expires - now)
        for hold in expired:
            hold.expire()

"""Fewer, larger messages under load.

The cost of a stream lies in its messages, not in their size. With many streams a message is worth waiting for; with
few, every token goes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

PACED_FROM = 16  # live streams; below that the processor has time for a message per token
_GRANULARITY = 0.002  # seconds: what is due this soon goes now, so that one timer serves many streams

Release = Callable[[], None]


class Pacer:
    """Holds streams back for `interval` seconds after each of their messages while `live()` is at least PACED_FROM.

    All holds last equally long, so they end in the order in which they began: one queue and one timer serve
    all streams.
    """

    def __init__(self, interval: float, live: Callable[[], int]) -> None:
        self._interval = interval
        self._live = live
        self._held: deque[tuple[float, Release]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, release: Release) -> bool:
        """After a message: True if the next one shall wait until `release` is called."""
        if self._interval == 0 or self._live() < PACED_FROM:
            return False
        self._held.append((time.monotonic() + self._interval, release))
        if self._timer is None:
            self._arm(self._interval)
        return True

    def _arm(self, delay: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        now = time.monotonic()
        while self._held and self._held[0][0] <= now + _GRANULARITY:
            self._held.popleft()[1]()
        if self._held:
            self._arm(self._held[0][0] - now)

"""The steps that a rank runs, of which each has requests in it: the rank stops when there are none."""

from __future__ import annotations

import asyncio
from contextlib import suppress

QUIET_SECONDS = 1.0  # without a step: nothing runs that a stop would break


class Steps:
    """Counts steps, and knows whether some were run a moment ago. Used from one event loop."""

    def __init__(self) -> None:
        self.total = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """1 while steps are run."""
        return int(not self._quiet.is_set())

    def note(self) -> None:
        """A step has begun."""
        self.total += 1
        self._quiet.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._quiet.set)

    def end(self) -> None:
        """No step follows: there is no group."""
        self._quiet.set()

    async def drain(self, seconds: float) -> bool:
        """Waits at most `seconds` until it is quiet. True if it is."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), seconds)
        return self._quiet.is_set()

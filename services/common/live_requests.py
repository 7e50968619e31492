"""The requests that a station holds at this moment: counted for the read-out, waited for when the station drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from services.common.errors import Draining


class LiveRequests:
    """Counts requests between their arrival and their end. Used from one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Holds one request. Raises Draining once `drain` was called."""
        if self._draining:
            raise Draining("the station is about to stop; try again")
        self._count += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._empty.set()

    async def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits at most `seconds` for the running ones. True when none is left."""
        self._draining = True
        with suppress(TimeoutError):  # wait_for(…, 0) does not look at the event
            await asyncio.wait_for(self._empty.wait(), seconds)
        return self._count == 0

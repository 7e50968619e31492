"""A bound on the requests that wait for a station to come back: the engine's own queue does not see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.common.errors import QueueFull


class WaitingRoom:
    """Has a fixed number of places. Used from one event loop."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    @contextmanager
    def place(self) -> Iterator[None]:
        """Holds a place. Raises QueueFull when none is free."""
        if self._taken >= self._places:
            raise QueueFull(f"{self._taken} requests wait for a station already; try again later")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

"""A station's process: its event loop, its exit status, and what it says when it cannot begin."""

from __future__ import annotations

import gc
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

import uvloop

# Net allocations until the garbage collector looks for cycles; Python's own value is 700. What an engine step makes for
# its sequences lives until the next step, a thousand objects: each step would start a collection, and every hundredth
# of those walks through all that the station has loaded. References free almost everything here; cycles are few.
_GARBAGE_THRESHOLD = 50_000


class CannotListen(OSError):
    """A port cannot be had; the message is all that an operator needs."""


def run_station(main: Coroutine[Any, Any, int]) -> NoReturn:
    """Runs `main` on an event loop and exits with what it returns; with 1 and one sentence if it cannot listen."""
    gc.set_threshold(_GARBAGE_THRESHOLD)
    sys.exit(uvloop.run(_status(main)))


async def _status(main: Coroutine[Any, Any, int]) -> int | str:
    try:
        return await main
    except CannotListen as error:
        return str(error)  # sys.exit writes it to standard error; the status is 1

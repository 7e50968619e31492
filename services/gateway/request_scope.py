"""How long a request's work may go on: until the client is gone, the deadline passes, or the gateway stops.

Each of these cancels the task that serves the request, wherever it stands; the gRPC calls below end in their `finally`.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from starlette.types import Receive

from services.common.errors import DeadlineExceeded
from services.gateway.errors import ApiError, ClientDisconnected


def _body_too_slow() -> ApiError:
    return ApiError(408, "the request body did not arrive in time", code="request_timeout")


class RequestScope:
    """Around a request's work in the current task, like `asyncio.timeout`: `end` makes the block raise the error given.

    It is a context manager for use once. The block's own exceptions pass through.
    """

    def __init__(self, registry: set[RequestScope], deadline: float) -> None:
        self._registry = registry
        self._deadline = deadline
        self._timed_out: Exception = _body_too_slow()
        self._error: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a request is served in a task"
        self._task = task
        self._cancelling = task.cancelling()  # cancel requests that are not ours
        left = self._deadline - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(left, self._time_out)
        self._registry.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._registry.discard(self)
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._error is None:
            return
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._error from None

    def end(self, error: Exception) -> None:
        """Ends the block with `error`. Only the first call counts."""
        if self._error is None:
            self._error = error
            self._task.cancel()

    def _time_out(self) -> None:
        self.end(self._timed_out)

    def watch_client(self, receive: Receive) -> None:
        """Ends the block when the client disconnects. To be called once the body is read: `receive` is then ours.

        Only a pending `receive` notices a disconnect, hence a task that awaits nothing else. From here on the deadline
        is the server's failure.
        """
        self._timed_out = DeadlineExceeded("the request took longer than it may")
        self._watcher = asyncio.create_task(self._watch(receive))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end(ClientDisconnected())


class RequestScopes:
    """All requests that are being served."""

    def __init__(self) -> None:
        self._open: set[RequestScope] = set()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, deadline: float) -> RequestScope:
        """A scope that ends at `deadline`, seconds of time.monotonic().

        With ApiError 408 while the request's body is still awaited, later with DeadlineExceeded.
        """
        return RequestScope(self._open, deadline)

    def end_all(self, error: Exception) -> None:
        """Ends every open scope with `error`."""
        for scope in list(self._open):
            scope.end(error)

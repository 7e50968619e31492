"""Calls that are open before their request is known.

Opening is the larger part of a call's cost: its headers, the station's search for the method, a task to handle it.
Between idle processes it takes about as long as what follows. None of it needs the message, so it is done while the
message is in the making. For the station it is an ordinary call whose one message comes a little later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from services.gateway.generate_call import GenerateCall
from services.gateway.render_call import RenderCall


class _Call(Protocol):
    def close(self) -> None:
        """Gives the call up. Idempotent."""


C = TypeVar("C", bound=_Call)


class CallAhead(Generic[C]):
    """The call for a request's first try, opened when there is time for it; whoever takes it closes it."""

    def __init__(self, open_call: Callable[[], C | None]) -> None:
        """`open_call` returns None where there is nobody to call: the request will have to wait."""
        self._open_call = open_call
        self._call: C | None = None

    def open(self) -> None:
        """Opens the call, unless there is one."""
        self._call = self._call or self._open_call()

    def take(self) -> C | None:
        """The call, once, if it was opened."""
        call, self._call = self._call, None
        return call

    def close(self) -> None:
        """Closes a call that nobody has taken."""
        if (call := self.take()) is not None:
            call.close()


class CallsAhead:
    """Those of one request."""

    def __init__(
        self,
        open_render: Callable[[], RenderCall | None] = lambda: None,
        open_generate: Callable[[], GenerateCall | None] = lambda: None,
    ) -> None:
        self.render = CallAhead(open_render)
        self.generate = CallAhead(open_generate)

    def close(self) -> None:
        """Closes those that nobody has taken."""
        self.render.close()
        self.generate.close()

"""Between rank 0's engine thread, which computes, and the event loop, on which its RankLeader speaks with the ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from services.engine.plan import StepPlan
from services.engine.ranks.errors import GroupLost
from services.engine.ranks.formation import Formation
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.wire import plan_message
from services.pb.postroad.v1 import ranks_pb2


class LinkListener(Protocol):
    """Told by the engine thread, on the event loop, in order."""

    def on_identified(self, identity: RankIdentity) -> None:
        """The model's files are read: ranks can be compared."""

    def on_own_part_loaded(self, loaded: LoadedRank, graph_sizes: Sequence[int]) -> None:
        """Rank 0's weights are in memory. All ranks are to record graphs of decodes for these numbers of rows."""

    def on_store_open(self, epoch: int, port: int) -> None:
        """The ranks can find each other there."""

    def on_group_formed(self, epoch: int) -> None:
        """Rank 0 is connected with all others."""

    def on_group_failed(self, epoch: int, reason: str) -> None:
        """The group could not be formed."""

    def on_plan(self, message: ranks_pb2.ToRank, made: float) -> None:
        """To be sent to all ranks. `made` by time.perf_counter."""


class RankLink:
    """The engine thread's end, but for `offer`, which is the loop's."""

    def __init__(self, listener: LinkListener) -> None:
        """To be made on the event loop."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._formations: SimpleQueue[Formation] = SimpleQueue()
        self._epoch: int | None = None  # of the group that is together, as far as this thread knows

    def offer(self, formation: Formation) -> None:
        """All ranks are here: the engine thread is to form the group."""
        self._formations.put(formation)

    def identified(self, identity: RankIdentity) -> None:
        self._post(lambda: self._listener.on_identified(identity))

    def own_part_loaded(self, loaded: LoadedRank, graph_sizes: Sequence[int]) -> None:
        self._post(lambda: self._listener.on_own_part_loaded(loaded, graph_sizes))

    def wait_for_formation(self) -> Formation:
        """Sleeps until all ranks are here."""
        return self._latest(self._formations.get())

    def pending_formation(self) -> Formation | None:
        """The one that was offered and not taken up yet, if there is one."""
        try:
            return self._latest(self._formations.get_nowait())
        except Empty:
            return None

    def store_open(self, epoch: int, port: int) -> None:
        self._post(lambda: self._listener.on_store_open(epoch, port))

    def group_formed(self, epoch: int) -> None:
        self._epoch = epoch
        self._post(lambda: self._listener.on_group_formed(epoch))

    def group_failed(self, epoch: int, error: GroupLost) -> None:
        self._post(lambda: self._listener.on_group_failed(epoch, str(error)))

    def group_left(self) -> None:
        """No plan is sent until the next group."""
        self._epoch = None

    def send_plan(self, plan: StepPlan) -> None:
        """Raises GroupLost when there is no group."""
        if self._epoch is None:
            raise GroupLost("the ranks are not together")
        made = time.perf_counter()
        message = plan_message(plan, self._epoch)
        self._post(lambda: self._listener.on_plan(message, made))

    def _latest(self, formation: Formation) -> Formation:
        while not self._formations.empty():
            formation = self._formations.get()
        return formation

    def _post(self, tell: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop has ended, and this daemon thread is about to
            raise GroupLost("the engine stops") from None

"""The thread of a rank that does not lead: loads its part, then does what rank 0 says, in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.metrics import FollowerMetrics
from services.pb.postroad.v1 import ranks_pb2

if TYPE_CHECKING:
    from services.engine.ranks.follower import Follower  # it needs torch, which this thread is the first to load

Load = Callable[[], tuple["Follower", LoadedRank]]  # what computes, and what rank 0 is told of it


class FollowerListener(Protocol):
    """Told on the event loop, in order."""

    def on_loaded(self, loaded: LoadedRank) -> None:
        """The rank's part is in memory."""

    def on_formed(self, epoch: int) -> None:
        """The rank is in the group."""

    def on_begun(self, number: int) -> None:
        """A step has begun."""

    def on_failed(self, epoch: int, error: Exception) -> None:
        """The rank could not form the group or run a step, and has left the group."""

    def on_death(self, error: BaseException) -> None:
        """The thread ended by an error. Nothing follows."""


class FollowerThread:
    """A daemon, so that a process that is told to stop need not wait for weights to load."""

    def __init__(self, load: Load, listener: FollowerListener, metrics: FollowerMetrics) -> None:
        """To be made, and started, on the event loop that shall call the listener."""
        self._load = load
        self._listener = listener
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        # None: rank 0 is gone, and the group with it; an event is set when everything before it is done.
        self._notes: SimpleQueue[ranks_pb2.ToRank | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rank", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, message: ranks_pb2.ToRank) -> None:
        """Has a group formed or a step run."""
        self._notes.put(message)

    async def leave(self, seconds: float) -> bool:
        """Leaves the group after what was told before. False if that takes longer than `seconds`: it hangs."""
        done = threading.Event()
        self._notes.put(None)
        self._notes.put(done)
        return await asyncio.to_thread(done.wait, seconds)

    def _run(self) -> None:
        try:
            follower, loaded = self._load()
            self._tell(self._listener.on_loaded, loaded)
            while True:
                note = self._notes.get()
                if isinstance(note, threading.Event):
                    note.set()
                elif note is None:
                    follower.leave()
                elif note.HasField("form"):
                    self._form(follower, note.form)
                elif not follower.is_alone:
                    self._step(follower, note.plan)
        except BaseException as error:  # the thread's end is the rank's, whatever the reason
            self._tell(self._listener.on_death, error)

    def _form(self, follower: Follower, message: ranks_pb2.FormGroup) -> None:
        try:
            follower.form(message)
        except Exception as error:
            self._fail(follower, message.epoch, error)
        else:
            self._tell(self._listener.on_formed, message.epoch)

    def _step(self, follower: Follower, plan: ranks_pb2.RankPlan) -> None:
        self._tell(self._listener.on_begun, plan.number)
        begun = time.perf_counter()
        try:
            follower.execute(plan)
        except Exception as error:
            self._fail(follower, plan.epoch, error)
        else:
            self._metrics.step_seconds.observe(time.perf_counter() - begun)

    def _fail(self, follower: Follower, epoch: int, error: Exception) -> None:
        follower.leave()
        self._tell(self._listener.on_failed, epoch, error)

    def _tell(self, listener: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # after the loop's end nobody listens
            self._loop.call_soon_threadsafe(listener, *arguments)

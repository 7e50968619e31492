"""Where ranks meet for the model's collectives: a process group of torch.distributed, made anew for each epoch.

A collective, or a step of them, fails within the group's time-out where another rank does not take part. With Gloo it
does so at once where the connection to the other rank breaks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from services.engine.ranks.errors import GroupLost
from services.engine.ranks.process_groups import GLOO, Backend, Meeting, Place
from services.engine.ranks.step_clock import StepClock, TimedStep

LEAVE_SECONDS = 10.0
RECORD_SECONDS = 120.0  # for what ranks do together before the first step: each loads kernels, and records graphs


class RankGroup:
    """One rank's place in the group. Implements `Collectives`. To be used by one thread."""

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        form_timeout: float,
        *,
        meeting: Meeting = GLOO,
        device_type: str = "cpu",
    ) -> None:
        """In seconds: `timeout` is as long as another rank may keep this one waiting in a collective or, on a CUDA
        device, as a step may take; `form_timeout` as long as the ranks have to connect with one another.

        Tensors are on `device_type`, cpu or cuda; `meeting` is of a kind for that.
        """
        self.rank = rank
        self.size = size
        self._place = Place(rank, size, timedelta(seconds=timeout), timedelta(seconds=form_timeout))
        self._device_type = device_type
        self._meeting = meeting
        self._backend: Backend = None
        self._is_rehearsing = False
        self._lost = ""  # why the group that there is, is void, if it is
        self._clock = None if self._meeting.watches_itself else StepClock(timeout, self._expire)
        self._sum, self._gather, self._broadcast = _options()

    def form(self, store: Store, own_host: str) -> None:
        """Connects with all other ranks, which must do the same meanwhile. Leaves the group before.

        `own_host` is the address at which the others reach this rank. Raises GroupLost.
        """
        self.leave()
        self._lost = ""
        with self.timed(self._place.form_timeout.total_seconds()):
            try:
                self._backend = self._meeting.connect(store, self._place, own_host)
            except (RuntimeError, ValueError) as error:
                raise GroupLost(f"rank {self.rank} cannot connect with the others: {error}") from error
            # Each kind of collective once: NCCL connects at first use.
            ones = torch.ones(1, device=self._device_type)
            if (present := int(self.sum(ones))) != self.size:
                raise GroupLost(f"{present} of {self.size} ranks are in the group")
            self.broadcast(ones)
            self.gather(ones)

    def leave(self) -> None:
        """Closes the connections: the others' collectives fail. Graphs of collectives are dropped before."""
        backend, self._backend = self._backend, None
        if backend is not None:
            self.begin_step(LEAVE_SECONDS)
            self._meeting.part(backend)
        if self._clock is not None:
            self._clock.forget()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Meanwhile the collectives of a rank that is alone take what memory they take in a group, and mean nothing."""
        self._is_rehearsing = True
        try:
            yield
        finally:
            self._is_rehearsing = False

    def begin_step(self, seconds: float | None = None) -> TimedStep:
        """The others are expected to run a step, too, from now on. `seconds`: if it may take longer than others."""
        return TimedStep(0.0) if self._clock is None else self._clock.begin(seconds)

    @contextmanager
    def timed(self, seconds: float) -> Iterator[None]:
        """What the ranks do together besides steps. Raises GroupLost if it took longer, as another rank did not."""
        step = self.begin_step(seconds)
        try:
            yield
        finally:
            step.end()
        self.require_whole()

    def require_whole(self) -> None:
        """Raises GroupLost if what was computed is void: another rank was waited for in vain."""
        if self._lost:
            raise GroupLost(self._lost)

    def sum(self, x: Tensor) -> Tensor:
        if not self._is_rehearsing:
            self._run("allreduce", [x], self._sum)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        num_parts = self.size if self.rank == 0 else 0
        if self._is_rehearsing:
            return [x.clone() for _ in range(num_parts)]
        parts = [torch.empty_like(x) for _ in range(num_parts)]
        self._run("gather", [parts] if parts else [], [x], self._gather)
        return parts

    def broadcast(self, x: Tensor) -> None:
        if not self._is_rehearsing:
            self._run("broadcast", [x], self._broadcast)

    def _run(self, collective: str, *arguments: Any) -> None:
        self.require_whole()
        if self._backend is None:
            raise GroupLost("the ranks are not together")
        try:
            work = getattr(self._backend, collective)(*arguments)
            if work is not None:
                work.wait()
        except RuntimeError as error:
            self._lost = f"rank {self.rank} waited for another rank in vain: {error}"
            raise GroupLost(self._lost) from error

    def _expire(self) -> Callable[[], None]:
        """In the clock's thread, while no step begins and none is forgotten."""
        self._lost = f"rank {self.rank} waited for another rank in vain"
        backend = self._backend
        return (lambda: None) if backend is None else partial(self._meeting.part, backend)


def _options() -> tuple[Any, Any, Any]:
    """Of sum, gather and broadcast: in the queue of whoever calls, where there are queues, and to or from rank 0."""
    options: tuple[Any, Any, Any] = (dist.AllreduceOptions(), dist.GatherOptions(), dist.BroadcastOptions())
    for each in options:
        each.asyncOp = False
    options[1].rootRank = options[2].rootRank = 0
    return options


def open_store(host: str, timeout: float) -> tuple[TCPStore, int]:
    """Rank 0's: where the ranks of one epoch find each other. Listens on `host`, at the port that is returned."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=64)
    port = int(listener.getsockname()[1])
    store = TCPStore(
        {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host),  # all addresses: one of them for rank 0 itself
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store's own socket would listen on all addresses
    )
    return store, port


def reach_store(host: str, port: int, timeout: float) -> TCPStore:
    """Rank 0's store. Raises GroupLost."""
    try:
        return TCPStore(host, port, timeout=timedelta(seconds=timeout), wait_for_workers=False)
    except RuntimeError as error:
        raise GroupLost(f"rank 0 has no store at {host}:{port}: {error}") from error

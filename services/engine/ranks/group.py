"""Where ranks meet for the model's collectives: a process group of torch.distributed, made anew for each epoch.

The groups are objects of their own; torch's global default group is not used. A collective fails within the group's
time-out where another rank does not take part, and at once where the connection to it breaks.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from services.engine.ranks.errors import GroupLost


class RankGroup:
    """One rank's place in the group. Implements `Collectives`. To be used by one thread."""

    def __init__(self, rank: int, size: int, timeout: float, form_timeout: float) -> None:
        """In seconds: `timeout` is as long as another rank may keep this one waiting in a collective, `form_timeout` as
        long as the ranks have to connect with one another."""
        self.rank = rank
        self.size = size
        self._timeout = timedelta(seconds=timeout)
        self._form_timeout = timedelta(seconds=form_timeout)
        self._gloo: Any = None  # a ProcessGroupGloo, whose methods torch's type hints leave out
        self._gather_at_first: Any = dist.GatherOptions()
        self._gather_at_first.rootRank = 0

    def form(self, store: Store, own_host: str) -> None:
        """Connects with all other ranks, which must do the same meanwhile. Leaves the group before.

        `own_host` is the address at which the others reach this rank. Raises GroupLost.
        """
        self.leave()
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = self._form_timeout
        try:
            options._devices = [gloo.create_device(hostname=own_host)]
            self._gloo = gloo(store, self.rank, self.size, options)
        except (RuntimeError, ValueError) as error:
            raise GroupLost(f"rank {self.rank} cannot connect with the others: {error}") from error
        self._gloo._set_default_timeout(self._timeout)
        if (present := int(self.sum(torch.ones(1)))) != self.size:
            raise GroupLost(f"{present} of {self.size} ranks are in the group")

    def leave(self) -> None:
        """Closes the connections: the others' collectives fail."""
        self._gloo = None

    def sum(self, x: Tensor) -> Tensor:
        try:
            self._group().allreduce([x]).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else []
        try:
            self._group().gather([parts] if parts else [], [x], self._gather_at_first).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        return parts

    def _group(self) -> Any:
        if self._gloo is None:
            raise GroupLost("the ranks are not together")
        return self._gloo

    def _lost(self, error: RuntimeError) -> GroupLost:
        if isinstance(error, GroupLost):
            return error
        self.leave()
        return GroupLost(f"rank {self.rank} waited for another rank in vain: {error}")


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

"""Which kind of process group ranks meet in: Gloo where tensors are on the CPU, NCCL where they are on CUDA devices.

The groups are objects of their own; torch's global default group is not used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

from torch import distributed as dist
from torch._C._distributed_c10d import Store

# A c10d backend: allreduce, gather, broadcast. torch's type hints leave its methods out.
Backend = Any

_NEVER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place among the others."""

    rank: int
    size: int
    timeout: timedelta  # as long as another rank may keep this one waiting
    form_timeout: timedelta  # as long as the ranks have to connect with one another


class Meeting(Protocol):
    """How ranks come together and part."""

    @property
    def watches_itself(self) -> bool:
        """Whether a collective that another rank does not take part in fails by itself, within the time-out."""
        ...

    def connect(self, store: Store, place: Place, own_host: str) -> Backend:
        """Raises RuntimeError or ValueError."""
        ...

    def part(self, backend: Backend) -> None:
        """What runs of the backend's collectives ends, here at once and elsewhere within the time-out. From whichever
        thread."""
        ...


def meeting_on(device_type: str) -> Meeting:
    """For tensors on cpu or cuda."""
    return NcclMeeting() if device_type == "cuda" else GLOO


class GlooMeeting:
    """Implements `Meeting`. A collective is over when `wait` returns."""

    watches_itself: ClassVar[bool] = True

    def connect(self, store: Store, place: Place, own_host: str) -> Backend:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = place.form_timeout
        options._devices = [gloo.create_device(hostname=own_host)]
        backend = gloo(store, place.rank, place.size, options)
        backend._set_default_timeout(place.timeout)
        return backend

    def part(self, backend: Backend) -> None:
        """The connections close with the last reference."""


GLOO = GlooMeeting()


@dataclass(frozen=True, slots=True)
class NcclMeeting:
    """Implements `Meeting`. Collectives are kernels in the device's queue of work, recorded graphs included: no call
    waits for another rank, and none fails if it does not come. Whoever waits for a step keeps the time (`StepClock`).

    library: torch.distributed, or what stands for it.
    """

    library: Any = dist
    watches_itself: ClassVar[bool] = False

    def connect(self, store: Store, place: Place, own_host: str) -> Backend:
        # torch's own watchdog ends the process when collectives are aborted, unless it is told to handle nothing; for
        # recorded graphs torch's documentation asks for that, too. Its monitor would ask a store that goes with rank 0,
        # and end the process where an abort takes long. The variables are read as the group is made.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "0"
        nccl: Any = self.library.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = _NEVER  # the watchdog's
        return nccl(store, place.rank, place.size, options)

    def part(self, backend: Backend) -> None:
        """Kernels that wait for other ranks end, with void results. Graphs that hold the group's collectives are to be
        dropped first, or meanwhile: until then this does not return."""
        backend.abort()

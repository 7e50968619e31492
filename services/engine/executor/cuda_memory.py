"""Which device torch's current one is, what it has of memory, and what a computation takes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class DeviceMemory(Protocol):
    """In bytes."""

    def total(self) -> int: ...

    def free(self) -> int:
        """What can still be allocated, by this process or another one."""
        ...

    def peak(self, run: Callable[[], None]) -> int:
        """The most that `run` takes beyond what was taken before."""
        ...


class CudaMemory:
    """Implements `DeviceMemory` for torch's current device."""

    def total(self) -> int:
        return torch.cuda.mem_get_info()[1]

    def free(self) -> int:
        torch.cuda.empty_cache()  # gives back what torch keeps for later
        return torch.cuda.mem_get_info()[0]

    def peak(self, run: Callable[[], None]) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_reserved() - before  # what lies idle between allocations included


def gpu_uuid() -> str:
    """Of torch's current device, whatever its number is in this process."""
    return str(torch.cuda.get_device_properties().uuid)

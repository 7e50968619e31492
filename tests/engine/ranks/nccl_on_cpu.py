"""A stand-in for torch's process group over NCCL, for ranks that are threads of one process.

As NCCL's, its collectives wait for the other ranks for ever, whatever the time-out, until they are aborted; then they
end with void results, and further ones are refused. As NCCL's they can be recorded in a graph, and an abort does not
return as long as there is such a graph. On a GPU it is the device that waits; here it is whoever calls.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

_KEY = "nccl-unique-id"


class Communicator:
    """Tensors change hands here: each rank lays down its own, and takes those of all."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.laid_down: dict[int, dict[int, Tensor]] = {}  # by number of the collective and rank


@dataclass
class Options:
    _timeout: timedelta = timedelta(minutes=10)


@dataclass
class NcclOnCpu:
    """In the place of `torch.distributed`. `log` says who has aborted."""

    communicators: list[Communicator] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    is_broken: bool = False  # collectives fail at once, as when a connection has broken
    num_graphs: Callable[[int], int] = lambda _: 0  # that hold collectives of a rank

    def ProcessGroupNCCL(self, store: Store, rank: int, size: int, options: Options) -> ProcessGroup:
        assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0", "the watchdog would end the process"
        assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0", "the monitor would end the process"
        assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "0", "no collective could be recorded"
        assert options._timeout > timedelta(hours=1), "the watchdog would abort a group that is idle"
        if rank == 0:
            self.communicators.append(Communicator())
            store.set(_KEY, str(len(self.communicators) - 1))
        return ProcessGroup(self, self.communicators[int(store.get(_KEY))], rank, size)

    def __post_init__(self) -> None:
        self.ProcessGroupNCCL.__func__.Options = Options  # type: ignore[attr-defined]


class ProcessGroup:
    """What is used of it. The operations are torch's own kind, so that a recorder sees them."""

    def __init__(self, library: NcclOnCpu, communicator: Communicator, rank: int, size: int) -> None:
        self._library = library
        self._communicator = communicator
        self.rank, self.size = rank, size
        self._numbers = itertools.count()
        self._is_aborted = False
        self._key = _register(self)

    def allreduce(self, tensors: list[Tensor], options: Any) -> None:
        self._check(options)
        torch.ops.postroad_tests.all_reduce(tensors[0], self._key)

    def broadcast(self, tensors: list[Tensor], options: Any) -> None:
        self._check(options)
        torch.ops.postroad_tests.broadcast(tensors[0], self._key)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> None:
        self._check(options)
        assert bool(outputs) == (self.rank == 0)
        torch.ops.postroad_tests.gather(inputs[0], outputs[0] if outputs else [], self._key)

    def abort(self) -> None:
        with self._communicator.changed:
            self._is_aborted = True
            self._communicator.changed.notify_all()
        self._library.log.append(f"rank {self.rank} aborts")
        for _ in range(500):
            if not self._library.num_graphs(self.rank):
                return
            threading.Event().wait(0.01)
        self._library.log.append(f"rank {self.rank} waits for ever: there are graphs of the group's collectives")

    def exchange(self, x: Tensor) -> list[Tensor] | None:
        """All ranks' tensors, in order; None after an abort."""
        number, changed, laid_down = next(self._numbers), self._communicator.changed, self._communicator.laid_down
        with changed:
            laid_down.setdefault(number, {})[self.rank] = x.clone()
            changed.notify_all()
            changed.wait_for(lambda: self._is_aborted or len(laid_down[number]) == self.size)
            return None if self._is_aborted else [laid_down[number][rank] for rank in range(self.size)]

    def _check(self, options: Any) -> None:
        assert not options.asyncOp, "on a stream of its own"
        if self._is_aborted or self._library.is_broken:
            raise RuntimeError(
                "NCCL communicator was aborted" if self._is_aborted else "NCCL error: remote process exited"
            )


_GROUPS: dict[int, ProcessGroup] = {}  # an operation takes no objects


def _register(group: ProcessGroup) -> int:
    _GROUPS[len(_GROUPS)] = group
    return len(_GROUPS) - 1


@torch.library.custom_op("postroad_tests::all_reduce", mutates_args=("x",))
def _all_reduce(x: Tensor, group: int) -> None:
    parts = _GROUPS[group].exchange(x)
    if parts is not None:
        x.copy_(torch.stack(parts).sum(0))


@torch.library.custom_op("postroad_tests::broadcast", mutates_args=("x",))
def _broadcast(x: Tensor, group: int) -> None:
    parts = _GROUPS[group].exchange(x)
    if parts is not None:
        x.copy_(parts[0])


@torch.library.custom_op("postroad_tests::gather", mutates_args=("outputs",))
def _gather(x: Tensor, outputs: list[Tensor], group: int) -> None:
    parts = _GROUPS[group].exchange(x)
    if parts is not None:
        for output, part in zip(outputs, parts, strict=False):
            output.copy_(part)

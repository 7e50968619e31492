"""A fake device with two queues, whose work is done late, or in whatever order the waits allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from services.engine.executor.uploads import Event, Queues

# Who is made not to wait, to see what goes wrong.
Impatient = Literal["nobody", "the computation", "the copies", "the CPU"]


@dataclass(frozen=True)
class LazyEvent:
    queue: LazyQueue
    place: int

    @property
    def is_reached(self) -> bool:
        return self.queue.num_done >= self.place

    def wait(self) -> None:
        if self.queue.device.impatient != "the CPU":
            self.require()

    def require(self) -> None:
        """What a test waits for, to look at a result."""
        while not self.is_reached:
            assert self.queue.device.work(), "the queues wait for each other"


class LazyQueue:
    """Implements `Queue`. An operation runs when the device gets to it."""

    def __init__(self, device: DeviceOnCpu, impatient: Impatient) -> None:
        self.device = device
        self.num_done = 0
        self._waits = device.impatient != impatient
        self._work: list[Callable[[], None] | LazyEvent] = []

    def add(self, operation: Callable[[], None]) -> None:
        self._work.append(operation)

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.add(lambda: _copy(target, source))

    def mark(self) -> LazyEvent:
        return LazyEvent(self, len(self._work))

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, LazyEvent)
        if self._waits:
            self._work.append(event)

    def step(self) -> bool:
        """Does one operation, if there is one that need not wait."""
        if self.num_done == len(self._work):
            return False
        work = self._work[self.num_done]
        if isinstance(work, LazyEvent):
            if not work.is_reached:
                return False
        else:
            work()
        self.num_done += 1
        return True


class DeviceOnCpu:
    """Both queues are lazy: what reads tensors is to be added to `computation`."""

    def __init__(self, seed: int, impatient: Impatient = "nobody") -> None:
        self.impatient = impatient
        self.computation = LazyQueue(self, "the computation")
        self.copies = LazyQueue(self, "the copies")
        self._random = random.Random(seed)

    @property
    def queues(self) -> Queues:
        return Queues(self.computation, self.copies)

    def work(self) -> bool:
        """One operation of either queue. False if there is none."""
        queues = [self.computation, self.copies]
        self._random.shuffle(queues)
        return any(queue.step() for queue in queues)

    def work_a_while(self) -> None:
        for _ in range(self._random.choice((0, 0, 1, 3, 10))):
            self.work()

    def finish(self) -> None:
        while self.work():
            pass


class EagerComputation:
    """Implements `Queue` for what torch computes on the CPU at once: it stalls for the copies that it waits for."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        raise AssertionError("copies have a queue of their own")

    def mark(self) -> Event:
        return _Reached()

    def wait_for(self, event: Event) -> None:
        event.wait()


class _Reached:
    def wait(self) -> None:
        """It is."""


class LateCopies:
    """Implements `Queue`: copies are made when somebody waits for them; until then there is nonsense in their place."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.inference_mode():
            target.view(torch.uint8).fill_(0x7E)
        self._waiting.append(lambda: _copy(target, source))

    def mark(self) -> Event:
        return _Flush(self)

    def wait_for(self, event: Event) -> None:
        event.wait()

    def flush(self) -> None:
        for copy in self._waiting:
            copy()
        self._waiting.clear()


@dataclass(frozen=True)
class _Flush:
    copies: LateCopies

    def wait(self) -> None:
        self.copies.flush()


def _copy(target: Tensor, source: Tensor) -> None:
    with torch.inference_mode():
        target.copy_(source)

"""Numbers on their way to a device, beside its computation: staged in pinned memory, copied by a queue of their own.

So what step n + 1 needs is copied while step n runs. Three things are waited for, by queues and hardly ever by the CPU:

- the computation waits for the copies that it reads;
- copies into a slot wait for the computation that read the slot before: step n - 1, of two slots;
- the CPU writes to a slot's pinned memory when the copies from it are done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

_NUM_SLOTS = 2  # a step is launched while the one before it runs
_CHUNK_BYTES = 256 << 10
_ALIGNMENT = 64  # bytes


class Event(Protocol):
    """A place in a queue."""

    def wait(self) -> None:
        """The CPU waits until the queue is there."""
        ...


class Queue(Protocol):
    """Work that a device does in order."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """From pinned memory to the device."""
        ...

    def mark(self) -> Event:
        """Where everything that was added before is done."""
        ...

    def wait_for(self, event: Event) -> None:
        """What is added from now on is done after the event, which is in another queue."""
        ...


@dataclass(frozen=True, slots=True)
class Queues:
    """Of one device."""

    computation: Queue
    copies: Queue


class Uploads:
    """Called with numbers, it returns a tensor on `device`, for the computation that is launched after the call.

    With `queues` this happens within a `step`, and the tensor is valid for what is launched in that step. Without them
    it is there at once, and the caller's.
    """

    def __init__(self, device: torch.device, queues: Queues | None = None) -> None:
        self.device = device
        self._queues = queues
        self._slots = [_Slot(device) for _ in range(_NUM_SLOTS)]
        self._current: _Slot | None = None

    def __call__(self, values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
        source = torch.tensor(values, dtype=dtype)
        return source.to(self.device) if self._queues is None else self._staged(source, self._queues)

    def put(self, source: Tensor) -> Tensor:
        """Likewise, for a tensor on the CPU; it may be changed afterwards."""
        return source.to(self.device, copy=True) if self._queues is None else self._staged(source, self._queues)

    @contextmanager
    def step(self) -> Iterator[None]:
        """What is launched meanwhile may read what is uploaded meanwhile."""
        queues = self._queues
        if queues is None:
            yield
            return
        slot = self._current = self._slots[0]
        self._slots.append(self._slots.pop(0))
        slot.empty(queues)
        try:
            yield
        finally:
            slot.read = queues.computation.mark()
            self._current = None

    def _staged(self, source: Tensor, queues: Queues) -> Tensor:
        slot = self._current
        assert slot is not None, "an upload that belongs to no step"
        pinned, target = slot.room_for(source, queues)
        if source.numel():
            pinned.copy_(source)
            queues.copies.copy(target, pinned)
            slot.copied = queues.copies.mark()
            queues.computation.wait_for(slot.copied)
        return target


@dataclass(slots=True)
class _Slot:
    """What one step uploads."""

    device: torch.device
    copied: Event | None = None  # the last copy out of its pinned memory
    read: Event | None = None  # the last computation that reads its tensors
    chunks: list[_Chunk] = field(default_factory=list)

    def empty(self, queues: Queues) -> None:
        """Makes it free for another step."""
        if self.copied is not None:
            self.copied.wait()
        if self.read is not None:
            queues.copies.wait_for(self.read)
        for chunk in self.chunks:
            chunk.taken = 0

    def room_for(self, tensor: Tensor, queues: Queues) -> tuple[Tensor, Tensor]:
        """Pinned memory and a tensor on the device, both of the shape and type of `tensor`."""
        num_bytes = tensor.numel() * tensor.itemsize
        chunk = next((chunk for chunk in self.chunks if chunk.has_room(num_bytes)), None)
        if chunk is None:
            chunk = _Chunk.of(max(num_bytes, _CHUNK_BYTES), self.device)
            self.chunks.append(chunk)
            # The device's memory may be such as was freed when the computation that uses it was launched.
            queues.copies.wait_for(queues.computation.mark())
        return chunk.take(num_bytes, tensor)


@dataclass(slots=True)
class _Chunk:
    pinned: Tensor  # bytes, and as many on the device
    on_device: Tensor
    taken: int = 0

    @classmethod
    def of(cls, num_bytes: int, device: torch.device) -> _Chunk:
        pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        return cls(pinned, torch.empty(num_bytes, dtype=torch.uint8, device=device))

    def has_room(self, num_bytes: int) -> bool:
        return self.taken + num_bytes <= len(self.pinned)

    def take(self, num_bytes: int, like: Tensor) -> tuple[Tensor, Tensor]:
        part = slice(self.taken, self.taken + num_bytes)
        self.taken = math.ceil(part.stop / _ALIGNMENT) * _ALIGNMENT
        pinned, target = (memory[part].view(like.dtype).view(like.shape) for memory in (self.pinned, self.on_device))
        return pinned, target

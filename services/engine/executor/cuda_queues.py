"""The queues of a CUDA device, which are its streams."""

from __future__ import annotations

import torch
from torch import Tensor

from services.engine.executor.transfers import Mark
from services.engine.executor.uploads import Event, Queues, Uploads


def uploads_to(device: torch.device) -> Uploads:
    """On a CUDA device by a stream of their own."""
    if device.type != "cuda":
        return Uploads(device)
    return Uploads(device, Queues(CudaQueue(device), CudaQueue(device, torch.cuda.Stream(device))))  # type: ignore[no-untyped-call]


class CudaQueue:
    """Implements `Queue`: a stream or, without one, whichever is torch's current one."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self._device = device
        self._own_stream = stream

    @property
    def _stream(self) -> torch.cuda.Stream:
        return self._own_stream or torch.cuda.current_stream(self._device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        return Mark(self._device, self._stream)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, Mark), "an event of another kind of device"
        event.hold_back(self._stream)

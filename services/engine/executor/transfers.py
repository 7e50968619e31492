"""Places in a device's queue of work, and tensors on their way to the CPU: the CPU goes on meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_tensor(
    values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """On the CPU, in memory from which `device` can copy by itself; torch keeps that memory until it has."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")


class Mark:
    """A place in a device's queue of work: all that was launched before. A CPU has no queue."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        """In torch's current stream, unless another one is given."""
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(stream)

    def is_reached(self) -> bool:
        """Whether the device is there. From whichever thread."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Returns when the device is there."""
        if self._event is not None:
            self._event.synchronize()

    def hold_back(self, stream: torch.cuda.Stream) -> None:
        """What is launched in `stream` from now on is done when the device is here."""
        if self._event is not None:
            stream.wait_event(self._event)


class Download:
    """A tensor's way to the CPU. It does not wait for what is launched later."""

    def __init__(self, tensor: Tensor) -> None:
        """Takes the tensor as it is when the device gets here; it is not to be changed by anything launched later."""
        self._tensor = tensor
        if tensor.device.type == "cuda":
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
        self._mark = Mark(tensor.device)

    def read(self) -> Tensor:
        """On the CPU; waits until it is there."""
        self._mark.wait()
        return self._tensor

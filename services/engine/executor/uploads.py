"""Numbers on their way from lists to a device: copies are queued, and nobody waits for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_tensor(
    values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """On the CPU, in memory from which `device` can copy by itself; torch keeps that memory until it has."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")


def upload(values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On `device`, for what is launched after it."""
    return host_tensor(values, dtype, device).to(device, non_blocking=True)

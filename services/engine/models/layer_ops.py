"""What a decoder computes between its matrix products and attention: the interface, and plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from services.engine.models.config import Activation
from services.engine.models.norm import RMSNorm
from services.engine.models.rope import Rope

# Turns queries and keys, [tokens, heads, head_dim] each and side by side, which may be overwritten -> likewise.
Rotate = Callable[[Tensor], Tensor]


class LayerOps(Protocol):
    """Each operation may overwrite what it is given, but for positions."""

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor: ...

    def add_and_norm(self, norm: RMSNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """x, residual: [tokens, hidden_size] -> norm(residual + x), and residual + x."""
        ...

    def rotate(self, rope: Rope, positions: Tensor, dtype: torch.dtype) -> Rotate:
        """For heads of `dtype` of tokens at `positions` ([tokens], int64)."""
        ...

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """gate_up: [tokens, 2 * intermediate_size] -> activation(first half) * second half."""
        ...


class TorchOps:
    """Implements `LayerOps` on every device: the reference."""

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor:
        return norm(x)

    def add_and_norm(self, norm: RMSNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + x
        return norm(residual), residual

    def rotate(self, rope: Rope, positions: Tensor, dtype: torch.dtype) -> Rotate:
        return rope.rotation(positions, dtype).apply

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        return gate.mul_(up)

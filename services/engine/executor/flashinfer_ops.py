"""What a decoder computes between its matrix products, by flashinfer's fused kernels.

flashinfer is handed in, as for attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from services.engine.models.config import Activation
from services.engine.models.layer_ops import Rotate
from services.engine.models.norm import RMSNorm
from services.engine.models.rope import Rope


class FlashInferKernels(Protocol):
    """What is used of the package `flashinfer`, with its own names. Those of Gemma add 1 to the weight."""

    def rmsnorm(self, input: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def gemma_rmsnorm(self, input: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def fused_add_rmsnorm(self, input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None: ...

    def gemma_fused_add_rmsnorm(self, input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None: ...

    def silu_and_mul(self, input: Tensor) -> Tensor: ...

    def gelu_tanh_and_mul(self, input: Tensor) -> Tensor: ...

    def apply_rope_with_cos_sin_cache_inplace(
        self, positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor
    ) -> None: ...


class FlashInferOps:
    """Implements `LayerOps` for what `FlashInferAttention` covers."""

    def __init__(self, kernels: FlashInferKernels, ropes: Sequence[Rope], max_model_len: int) -> None:
        """Keeps cosines and sines of `max_model_len` positions for each rope."""
        self._kernels = kernels
        self._angles: Mapping[int, Tensor] = {id(rope): rope.cos_sin(max_model_len) for rope in ropes}

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor:
        kernel = self._kernels.gemma_rmsnorm if norm.offset else self._kernels.rmsnorm
        return kernel(x, norm.weight, norm.eps)

    def add_and_norm(self, norm: RMSNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        kernel = self._kernels.gemma_fused_add_rmsnorm if norm.offset else self._kernels.fused_add_rmsnorm
        kernel(x, residual, norm.weight, norm.eps)
        return x, residual

    def rotate(self, rope: Rope, positions: Tensor, dtype: torch.dtype) -> Rotate:
        return partial(self._rotate, positions, self._angles[id(rope)])

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return self._kernels.silu_and_mul(gate_up) if activation == "silu" else self._kernels.gelu_tanh_and_mul(gate_up)

    def _rotate(self, positions: Tensor, angles: Tensor, x: Tensor) -> Tensor:
        """Which of the heads are queries makes no difference: the last one stands for the keys."""
        query, key = x[:, :-1].flatten(1), x[:, -1]
        self._kernels.apply_rope_with_cos_sin_cache_inplace(positions, query, key, x.shape[-1], angles)
        return x

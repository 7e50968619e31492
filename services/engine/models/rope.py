"""Rotary position embedding (arXiv 2104.09864) in the half-split layout of Hugging Face checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of a step's tokens, shared by all layers. [tokens, 1, head_dim] each, in the model's dtype.

    The sines of the first half are negated, so that applying needs no negation.
    """

    cos: Tensor
    signed_sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Rotates heads. x: [tokens, heads, head_dim]; a new tensor of the same shape."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.signed_sin)


def rotation(inverse_frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Rotation:
    """The rotation of tokens at `positions` ([tokens], integers). Angles are computed in float32."""
    angles = positions[:, None].float() * inverse_frequencies
    cos, sin = angles.cos(), angles.sin()
    return Rotation(
        cos=torch.cat((cos, cos), -1)[:, None].to(dtype),
        signed_sin=torch.cat((-sin, sin), -1)[:, None].to(dtype),
    )

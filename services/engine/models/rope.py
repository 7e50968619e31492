"""Rotary position embedding (arXiv 2104.09864) in the half-split layout of Hugging Face checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of a step's tokens, shared by layers. [tokens, 1, rotary_dim] each, in the model's dtype.

    The sines of the first half are negated, so that applying needs no negation.
    """

    cos: Tensor
    signed_sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Rotates the first `rotary_dim` elements of heads. x: [tokens, heads, head_dim] -> a new tensor, likewise."""
        rotary_dim = self.cos.shape[-1]
        if rotary_dim < x.shape[-1]:
            return torch.cat((self.apply(x[..., :rotary_dim]), x[..., rotary_dim:]), -1)
        return torch.addcmul(x * self.cos, x.roll(rotary_dim // 2, -1), self.signed_sin)


@dataclass(frozen=True, slots=True)
class Rope:
    """inverse_frequencies: [rotary_dim / 2], float32; attention_factor: of cosines and sines."""

    inverse_frequencies: Tensor
    attention_factor: float

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation of tokens at `positions` ([tokens], integers). Angles are computed in float32."""
        angles = positions[:, None].float() * self.inverse_frequencies
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return Rotation(
            cos=torch.cat((cos, cos), -1)[:, None].to(dtype),
            signed_sin=torch.cat((-sin, sin), -1)[:, None].to(dtype),
        )

    def cos_sin(self, length: int) -> Tensor:
        """Cosines, then sines, of positions 0 … length - 1. [length, rotary_dim], float32"""
        positions = torch.arange(length, device=self.inverse_frequencies.device)
        angles = positions[:, None].float() * self.inverse_frequencies
        return torch.cat((angles.cos(), angles.sin()), -1) * self.attention_factor

"""Rotary position embedding (arXiv 2104.09864) in the half-split layout of Hugging Face checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.models.config import LinearScaling, Llama3Scaling, RopeConfig


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


def inverse_frequencies(head_dim: int, rope: RopeConfig, device: torch.device) -> Tensor:
    """Angle per position of each pair of dimensions. [head_dim / 2], float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case LinearScaling(factor):
            frequencies = frequencies / factor
        case Llama3Scaling() as scaling:
            frequencies = _llama3(frequencies, scaling)
    return frequencies.to(device)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divides frequencies of few turns per original context by `factor`, keeps those of many, blends in between."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)

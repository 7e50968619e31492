"""Random draws from a sequence's seed and the token's index alone: there is no generator state to keep or lose."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same seed and index (both 64 bits)."""
    stream = _mix(seed + _GOLDEN_GAMMA)  # seeds that differ by little start far from each other
    return (_mix(stream + (index + 1) * _GOLDEN_GAMMA) >> 11) / (1 << 53)


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draws one index per row. weights: [rows, n], not negative, not all 0, any scale; uniforms: [rows], float64.

    Returns [rows], int64. An index of weight 0 is never drawn.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # Below the total even where the product is rounded up to it, or the index would lie past the end.
    target = torch.minimum(uniforms * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def _mix(value: int) -> int:
    """The output function of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)

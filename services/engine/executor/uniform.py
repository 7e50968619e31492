"""Random numbers from a sequence's seed and the token's index alone: there is no generator state to keep or lose."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same seed and index (both 64 bits)."""
    stream = _mix(seed + _GOLDEN_GAMMA)  # seeds that differ by little start far from each other
    return (_mix(stream + (index + 1) * _GOLDEN_GAMMA) >> 11) / (1 << 53)


def _mix(value: int) -> int:
    """The output function of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)

"""The angles of rotary position embedding (arXiv 2104.09864): what every executor turns its queries and keys by."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from services.engine.models.rope_config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)

Frequencies = npt.NDArray[np.float32]


def inverse_frequencies(rope: RopeConfig) -> Frequencies:
    """Angle per position of each pair of dimensions, scaled as `rope` says. [rotary_dim / 2], float32.

    Powers are taken in float64 and rounded once; all else is float32, as in the models' own implementations.
    """
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    periods = (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    frequencies: Frequencies = np.float32(1.0) / periods
    match rope.scaling:
        case LinearScaling(factor):
            return frequencies / np.float32(factor)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            return _yarn(periods, rope, scaling)
        case LongRopeScaling(factors):
            return np.float32(1.0) / (np.array(factors, np.float32) * periods)
    return frequencies


def _llama3(frequencies: Frequencies, scaling: Llama3Scaling) -> Frequencies:
    """Divides frequencies of few turns per original context by `factor`, keeps those of many, blends in between."""
    turns = frequencies * np.float32(scaling.original_max_position_embeddings) / np.float32(2 * math.pi)
    span = np.float32(scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ((turns - np.float32(scaling.low_freq_factor)) / span).clip(0.0, 1.0)
    blended: Frequencies = frequencies * kept + frequencies / np.float32(scaling.factor) * (np.float32(1.0) - kept)
    return blended


def _yarn(periods: Frequencies, rope: RopeConfig, scaling: YarnScaling) -> Frequencies:
    """As Llama 3.1's, but the blend runs over the dimensions between those of `beta_fast` and `beta_slow` turns."""

    def dimension(turns: float) -> float:
        wavelengths = math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi))
        return rope.rotary_dim * wavelengths / (2 * math.log(rope.theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001  # a step, without dividing by 0
    ramp = (np.arange(rope.rotary_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1.0) - ramp.clip(0.0, 1.0)
    stretched = np.float32(1.0) / (np.float32(scaling.factor) * periods)
    blended: Frequencies = stretched * (np.float32(1.0) - kept) + np.float32(1.0) / periods * kept
    return blended

"""The angles of rotary position embedding (arXiv 2104.09864): what every executor turns its queries and keys by."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from services.engine.models.config import LinearScaling, Llama3Scaling, RopeConfig

Frequencies = npt.NDArray[np.float32]


def inverse_frequencies(head_dim: int, rope: RopeConfig) -> Frequencies:
    """Angle per position of each pair of dimensions, scaled as `rope` says. [head_dim / 2], float32.

    Powers are taken in float64 and rounded once; all else is float32, as in the models' own implementations.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1.0) / (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    match rope.scaling:
        case LinearScaling(factor):
            return frequencies / np.float32(factor)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
    return frequencies


def _llama3(frequencies: Frequencies, scaling: Llama3Scaling) -> Frequencies:
    """Divides frequencies of few turns per original context by `factor`, keeps those of many, blends in between."""
    turns = frequencies * np.float32(scaling.original_max_position_embeddings) / np.float32(2 * math.pi)
    span = np.float32(scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ((turns - np.float32(scaling.low_freq_factor)) / span).clip(0.0, 1.0)
    blended: Frequencies = frequencies * kept + frequencies / np.float32(scaling.factor) * (np.float32(1.0) - kept)
    return blended

"""What a config says of rotary position embedding: bases, and how frequencies are scaled for long contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.engine.models.errors import UnsupportedModelError
from services.engine.models.fields import integer, number, numbers, optional_number

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: positions are divided by `factor` (arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): as Llama 3.1's, with the blend over dimensions. `truncate` rounds its ends outward."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int
    truncate: bool


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753): each frequency is divided by a factor of its own."""

    factors: tuple[float, ...]


Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of the first `rotary_dim` elements of a head."""

    theta: float
    rotary_dim: int
    scaling: Scaling | None = None
    attention_factor: float = 1.0  # of cosines and sines


def read_rope(fields: Mapping[str, Any], config: Mapping[str, Any], head_dim: int, longest: int) -> RopeConfig:
    """`fields` are those of `rope_parameters` (transformers 5) or `rope_scaling` (before), which `config` completes.

    `longest` is the longest sequence that will be served, tokens. LongRoPE has two sets of factors, and keys that were
    turned by one cannot be attended to by queries of the other, so the length chooses once for all sequences.
    Raises UnsupportedModelError for a rope type, InvalidConfigError for a missing parameter.
    """
    merged = {**config, **{key: value for key, value in fields.items() if value is not None}}
    theta = number(merged, "rope_theta", default=10000.0)
    rotary_dim = int(head_dim * number(merged, "partial_rotary_factor", default=1.0))
    rope_type = fields.get("rope_type", fields.get("type", "default"))
    if rope_type == "su" or (rope_type == "yarn" and "short_factor" in fields):
        rope_type = "longrope"  # what earlier versions of Phi-3 called it
    match rope_type:
        case "default" | "dynamic":  # dynamic scaling sets in beyond max_position_embeddings, where nothing is served
            return RopeConfig(theta, rotary_dim)
        case "linear":
            return RopeConfig(theta, rotary_dim, LinearScaling(number(fields, "factor")))
        case "llama3":
            return RopeConfig(theta, rotary_dim, _llama3(merged))
        case "yarn":
            return RopeConfig(theta, rotary_dim, _yarn(merged), _yarn_attention_factor(merged))
        case "longrope":
            original = _original_length(merged)
            factors = numbers(fields, "long_factor" if longest > original else "short_factor", rotary_dim // 2)
            return RopeConfig(theta, rotary_dim, LongRopeScaling(factors), _longrope_attention_factor(merged))
    raise UnsupportedModelError("rope type", rope_type, ROPE_TYPES)


def _original_length(merged: Mapping[str, Any]) -> int:
    """The context that the model had before it was extended."""
    return integer(merged, "original_max_position_embeddings", default=integer(merged, "max_position_embeddings"))


def _llama3(merged: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=number(merged, "factor"),
        low_freq_factor=number(merged, "low_freq_factor"),
        high_freq_factor=number(merged, "high_freq_factor"),
        original_max_position_embeddings=_original_length(merged),
    )


def _yarn(merged: Mapping[str, Any]) -> YarnScaling:
    return YarnScaling(
        factor=number(merged, "factor"),
        beta_fast=number(merged, "beta_fast", default=32.0),
        beta_slow=number(merged, "beta_slow", default=1.0),
        original_max_position_embeddings=_original_length(merged),
        truncate=bool(merged.get("truncate", True)),
    )


def _yarn_attention_factor(merged: Mapping[str, Any]) -> float:
    if (given := optional_number(merged, "attention_factor")) is not None:
        return given
    factor = number(merged, "factor")
    if merged.get("mscale") and merged.get("mscale_all_dim"):
        return _yarn_mscale(factor, merged["mscale"]) / _yarn_mscale(factor, merged["mscale_all_dim"])
    return _yarn_mscale(factor, 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _longrope_attention_factor(merged: Mapping[str, Any]) -> float:
    if (given := optional_number(merged, "attention_factor")) is not None:
        return given
    original = _original_length(merged)
    factor = number(merged, "factor", default=integer(merged, "max_position_embeddings") / original)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0

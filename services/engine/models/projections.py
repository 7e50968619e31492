"""Which projections of a layer are one product, and what checkpoints call them: apart, or, as Phi-3, fused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from services.engine.models.config import ModelConfig

Array = npt.NDArray[Any]

_QKV, _GATE_UP = "qkv_proj", "gate_up_proj"


def qkv_projections(config: ModelConfig, attention: str) -> Mapping[str, int]:
    """Names, without .weight, and output sizes of the tensors whose rows are queries, keys and values, in order."""
    return _projections(config, attention, _QKV)


def gate_up_projections(config: ModelConfig, mlp: str) -> Mapping[str, int]:
    """Likewise gate and up."""
    return _projections(config, mlp, _GATE_UP)


def separated(config: ModelConfig, name: str, array: Array) -> Iterator[tuple[str, Array]]:
    """A tensor of a checkpoint as (name, array); one that is fused as its parts, which are views of its rows.

    Rows beyond those that the config calls for stay with the last part.
    """
    sizes = split_sizes(config, name)
    ends = list(accumulate(sizes.values()))[:-1]
    yield from zip(sizes, np.split(array, ends) if ends else (array,), strict=True)


def split_sizes(config: ModelConfig, name: str) -> Mapping[str, int]:
    """Names and rows of the tensors that a checkpoint's tensor stands for; of one that is not fused, itself with 0."""
    *module, projection, leaf = name.split(".")
    parts = _parts(config).get(projection) if config.fused_projections else None
    if parts is None:
        return {name: 0}
    return {".".join((*module, part, leaf)): size for part, size in parts.items()}


def _projections(config: ModelConfig, module: str, fused: str) -> Mapping[str, int]:
    parts = _parts(config)[fused]
    if config.fused_projections:
        return {f"{module}.{fused}": sum(parts.values())}
    return {f"{module}.{name}": size for name, size in parts.items()}


def _parts(config: ModelConfig) -> Mapping[str, Mapping[str, int]]:
    """Names and output sizes of what is fused, by the name of the whole."""
    return {
        _QKV: {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size},
        _GATE_UP: {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size},
    }

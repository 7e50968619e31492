"""Rope of a GGUF file → in the form of transformers 5."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.loading.errors import UnsupportedArchitecture
from services.engine.loading.gguf_reader import GgufReader

# Llama 3.1's scaling of rope: the same in every model that has it, but for the factor. GGUF keeps its result alone.
LLAMA3_ORIGINAL_CONTEXT = 8192
LLAMA3_LOW_FREQ_FACTOR = 1.0
LLAMA3_HIGH_FREQ_FACTOR = 4.0


def rope_parameters(reader: GgufReader) -> dict[str, Any]:
    """Rope in the form of transformers 5: type, theta and what the type needs."""
    theta = float(reader.get("rope.freq_base", 10_000.0))
    kind = reader.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in reader.file.tensors:
        return _llama3_rope(reader, theta)
    if "rope_factors_long.weight" in reader.file.tensors:
        return _longrope(reader, theta)
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": float(reader.require("rope.scaling.factor"))}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": float(reader.require("rope.scaling.factor")),
            "original_max_position_embeddings": reader.count("rope.scaling.original_context_length"),
        }
    raise UnsupportedArchitecture(
        f"{reader.file.path.name} scales rope by {kind!r}; none, linear and yarn are supported"
    )


def _llama3_rope(reader: GgufReader, theta: float) -> dict[str, Any]:
    """Recovers Llama 3.1's parameters from the divisors of the frequencies, and makes sure that they give the same."""
    file = reader.file
    stored = file.data(file.tensors["rope_freqs.weight"]).view(np.float32)
    factor = float(stored.max())
    wavelengths = 2 * np.pi * theta ** (np.arange(0, reader.head_dim(), 2) / reader.head_dim())
    share = (LLAMA3_ORIGINAL_CONTEXT / wavelengths - LLAMA3_LOW_FREQ_FACTOR) / (
        LLAMA3_HIGH_FREQ_FACTOR - LLAMA3_LOW_FREQ_FACTOR
    )
    share = np.clip(share, 0.0, 1.0)
    expected = 1 / ((1 - share) / factor + share)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-4):
        raise UnsupportedArchitecture(
            f"{file.path.name} scales rope by frequencies (rope_freqs) other than Llama 3.1's"
        )
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": LLAMA3_ORIGINAL_CONTEXT,
    }


def _longrope(reader: GgufReader, theta: float) -> dict[str, Any]:
    """Phi-3's factors of each frequency, for contexts beyond the original one and within it."""
    file = reader.file
    long, short = (
        file.data(file.tensors[f"rope_factors_{name}.weight"]).view(np.float32).ravel().tolist()
        for name in ("long", "short")
    )
    rope = {
        "rope_type": "longrope",
        "rope_theta": theta,
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": reader.count("rope.scaling.original_context_length"),
    }
    if (attention_factor := reader.get("rope.scaling.attn_factor")) is not None:
        rope["attention_factor"] = float(attention_factor)
    return rope

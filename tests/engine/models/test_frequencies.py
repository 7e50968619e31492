"""Rotary angles: the same as those that transformers computes, to one rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.engine.models.frequencies import inverse_frequencies
from services.engine.models.rope_config import LinearScaling, Llama3Scaling, RopeConfig, read_rope

ONE_ROUNDING = 2.0**-23


def _of_transformers(
    head_dim: int, attention_factor: float = 1.0, seq_len: int | None = None, **parameters: Any
) -> Any:
    config = transformers.LlamaConfig(
        head_dim=head_dim, max_position_embeddings=131072, rope_parameters={"rope_type": "default", **parameters}
    )
    scale = 1.0
    if (rope_type := config.rope_parameters["rope_type"]) == "default":
        frequencies, _ = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.compute_default_rope_parameters(
            config
        )
    else:
        frequencies, scale = ROPE_INIT_FUNCTIONS[rope_type](config, "cpu", seq_len=seq_len)
    assert scale == pytest.approx(attention_factor)
    return frequencies.numpy()


@pytest.mark.parametrize("head_dim", [12, 64, 80, 128])
@pytest.mark.parametrize("theta", [10_000.0, 100_000.0, 500_000.0, 1e6])
def test_default(head_dim: int, theta: float) -> None:
    ours = inverse_frequencies(RopeConfig(theta, head_dim))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, _of_transformers(head_dim, rope_theta=theta), rtol=ONE_ROUNDING)


def test_linear() -> None:
    ours = inverse_frequencies(RopeConfig(10_000.0, 64, LinearScaling(3.0)))
    theirs = _of_transformers(64, rope_type="linear", rope_theta=10_000.0, factor=3.0)
    np.testing.assert_allclose(ours, theirs, rtol=2 * ONE_ROUNDING)


def test_llama3() -> None:
    """As Llama 3.1 has it: some frequencies are kept, some divided, some lie between."""
    fields = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    ours = inverse_frequencies(RopeConfig(500_000.0, 128, Llama3Scaling(**fields)))  # type: ignore[arg-type]
    theirs = _of_transformers(128, rope_type="llama3", rope_theta=500_000.0, **fields)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)  # the blend subtracts
    plain = inverse_frequencies(RopeConfig(500_000.0, 128))
    assert {"kept", "blended", "divided"} == {
        "kept" if ratio > 0.999 else "divided" if ratio < 0.126 else "blended" for ratio in ours / plain
    }


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("theta", [10_000.0, 1e6])
def test_yarn(theta: float, truncate: bool) -> None:
    """As Qwen2.5 and Qwen3 are told to have it for long contexts."""
    fields = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "truncate": truncate}
    rope = read_rope(fields, {"rope_theta": theta, "max_position_embeddings": 131072}, 128, longest=131072)
    theirs = _of_transformers(128, rope.attention_factor, rope_theta=theta, **fields)
    ours = inverse_frequencies(rope)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    plain = inverse_frequencies(RopeConfig(theta, 128))
    assert ours[0] == plain[0]
    assert ours[-1] == pytest.approx(plain[-1] / 4)


@pytest.mark.parametrize("longest", [4096, 8192])
def test_longrope(longest: int) -> None:
    fields = {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.01 * i for i in range(48)],
        "long_factor": [1.0 + 0.5 * i for i in range(48)],
        "original_max_position_embeddings": 4096,
    }
    rope = read_rope(fields, {"rope_theta": 10_000.0, "max_position_embeddings": 131072}, 96, longest)
    theirs = _of_transformers(96, rope.attention_factor, seq_len=longest, rope_theta=10_000.0, **fields)
    np.testing.assert_allclose(inverse_frequencies(rope), theirs, rtol=2 * ONE_ROUNDING)

"""A config is read in full or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from services.engine.models.config import LinearScaling, Llama3Scaling, ModelConfig
from services.engine.models.errors import InvalidConfigError, UnsupportedModelError
from tests.engine.models.reference import hf_config


def test_reads_a_llama_config() -> None:
    config = ModelConfig.from_hf(hf_config(head_dim=None, num_key_value_heads=None))
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 4, 12)
    assert (config.q_size, config.kv_size) == (48, 48)
    assert config.rope.theta == 10000.0
    assert config.rope.scaling is None
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == (False,) * 4


def test_families_differ_in_biases_norms_and_head_dim() -> None:
    qwen2 = ModelConfig.from_hf(hf_config("Qwen2ForCausalLM"))
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = ModelConfig.from_hf(hf_config("Qwen3ForCausalLM", head_dim=None))
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    llama = ModelConfig.from_hf(hf_config(attention_bias=True))
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, False)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_is_read_in_both_forms(key: str) -> None:
    llama3: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 8192,
    }
    assert ModelConfig.from_hf(hf_config() | {key: llama3}).rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    linear: dict[str, Any] = {"type": "linear", "factor": 2.5}
    assert ModelConfig.from_hf(hf_config() | {key: linear}).rope.scaling == LinearScaling(2.5)


def test_theta_inside_rope_parameters_wins() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    assert ModelConfig.from_hf(hf_config(rope_theta=None, rope_parameters=rope)).rope.theta == 1e6


@pytest.mark.parametrize(
    ("config", "feature", "value"),
    [
        (hf_config("GemmaForCausalLM"), "architecture", "GemmaForCausalLM"),
        (hf_config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope type", "yarn"),
        (hf_config(rope_scaling={"type": "dynamic", "factor": 4.0}), "rope type", "dynamic"),
        (hf_config(partial_rotary_factor=0.5), "partial_rotary_factor", 0.5),
        (hf_config(hidden_act="gelu"), "hidden_act", "gelu"),
        (hf_config(quantization_config={"quant_method": "gptq", "bits": 4}), "quantization_config", "gptq"),
        (hf_config("MistralForCausalLM", sliding_window=128), "sliding_window", 128),
        (hf_config("Qwen2ForCausalLM", sliding_window=128, use_sliding_window=True), "sliding_window", 128),
        (hf_config("Qwen3ForCausalLM", layer_types=["sliding_attention"] * 3), "layer_types", "sliding_attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fieldbug_19_what_is_not_computed_is_refused_by_name(
    config: dict[str, Any], feature: str, value: object
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{feature} {value!r} is not supported") as refused:
        ModelConfig.from_hf(config)
    assert (refused.value.feature, refused.value.value) == (feature, value)


@pytest.mark.parametrize(
    "config",
    [
        hf_config("MistralForCausalLM", sliding_window=512),
        hf_config("Qwen2ForCausalLM", sliding_window=128, use_sliding_window=False),
        hf_config("Qwen2ForCausalLM", sliding_window=128, use_sliding_window=True, max_window_layers=3),
        hf_config("LlamaForCausalLM", sliding_window=128),
    ],
)
def test_a_window_that_cuts_nothing_is_accepted(config: dict[str, Any]) -> None:
    assert ModelConfig.from_hf(config).max_position_embeddings == 512


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": None}, "architectures must name one architecture"),
        ({"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]}, "architectures must name one architecture"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, not None"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, not 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor must be a positive number, not None"),
    ],
)
def test_fields_that_make_no_sense_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        ModelConfig.from_hf(hf_config(**fields))

"""A config is read in full or refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.engine.models.config import ModelConfig
from services.engine.models.errors import InvalidConfigError, UnsupportedModelError
from services.engine.models.rope_config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from tests.engine.models.reference import hf_config

_SLIDING_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["sliding_attention"] * 3}


def _rope(config: dict[str, Any], max_model_len: int | None = None) -> RopeConfig:
    (rope,) = ModelConfig.from_hf(config, max_model_len).ropes
    return rope


def test_reads_a_llama_config() -> None:
    config = ModelConfig.from_hf(hf_config(head_dim=None, num_key_value_heads=None))
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 4, 12)
    assert (config.q_size, config.kv_size) == (48, 48)
    assert _rope(hf_config()) == RopeConfig(theta=10000.0, rotary_dim=12)
    assert config.num_layers == 3
    assert {layer.window for layer in config.layers} == {None}
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
    assert _rope(hf_config() | {key: llama3}).scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    linear: dict[str, Any] = {"type": "linear", "factor": 2.5}
    assert _rope(hf_config() | {key: linear}).scaling == LinearScaling(2.5)


def test_theta_inside_rope_parameters_wins() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    assert _rope(hf_config(rope_theta=None, rope_parameters=rope)).theta == 1e6


def test_yarn_has_the_defaults_of_its_paper() -> None:
    rope = _rope(hf_config(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}))
    assert rope.scaling == YarnScaling(4.0, 32.0, 1.0, 128, truncate=True)
    assert rope.attention_factor == pytest.approx(1.1386, abs=1e-4)
    assert _rope(hf_config(rope_scaling={"type": "yarn", "factor": 4.0, "attention_factor": 2.0})).attention_factor == 2


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
def test_longrope_has_the_factors_of_the_longest_sequence_that_is_served(name: str) -> None:
    short, long = [1.0 + i for i in range(6)], [2.0 + i for i in range(6)]
    scaling = {"type": name, "short_factor": short, "long_factor": long}
    config = hf_config("Phi3ForCausalLM", rope_scaling=scaling, original_max_position_embeddings=128)
    assert _rope(config).scaling == LongRopeScaling(tuple(long))
    assert _rope(config, max_model_len=129).scaling == LongRopeScaling(tuple(long))
    assert _rope(config, max_model_len=128).scaling == LongRopeScaling(tuple(short))
    factor = (1 + math.log(512 / 128) / math.log(128)) ** 0.5  # of the model, whatever is served
    assert {_rope(config).attention_factor, _rope(config, 128).attention_factor} == {factor}


def test_dynamic_scaling_sets_in_beyond_what_is_served() -> None:
    assert _rope(hf_config(rope_scaling={"type": "dynamic", "factor": 4.0})) == _rope(hf_config())


def _windows(config: dict[str, Any]) -> list[int | None]:
    return [layer.window for layer in ModelConfig.from_hf(config).layers]


def test_windows_of_each_family() -> None:
    assert _windows(hf_config("MistralForCausalLM", sliding_window=128)) == [128] * 3
    assert _windows(hf_config("Phi3ForCausalLM", sliding_window=128)) == [128] * 3
    qwen2 = hf_config("Qwen2ForCausalLM", sliding_window=128, use_sliding_window=True, max_window_layers=1)
    assert _windows(qwen2) == [None, 128, 128]
    gemma2 = hf_config("Gemma2ForCausalLM", hidden_act=None, sliding_window=128)
    assert _windows(gemma2) == [128, None, 128]
    assert _windows(gemma2 | {"architectures": ["Gemma3ForCausalLM"]}) == [128] * 3
    smollm3 = hf_config("SmolLM3ForCausalLM", no_rope_layers=[1, 0, 1], sliding_window=128, use_sliding_window=True)
    assert _windows(smollm3) == [None, 128, None]
    given = ["full_attention", "sliding_attention", "full_attention"]
    for config in (qwen2, gemma2, smollm3):
        assert _windows(config | {"layer_types": given}) == [None, 128, None]


def test_smollm3_turns_nothing_in_some_layers() -> None:
    layers = ModelConfig.from_hf(hf_config("SmolLM3ForCausalLM", num_hidden_layers=5)).layers
    assert [layer.rope is None for layer in layers] == [False, False, False, True, False]
    assert layers[0].rope == RopeConfig(theta=10000.0, rotary_dim=12)
    without_theta = {key: value for key, value in hf_config("SmolLM3ForCausalLM").items() if key != "rope_theta"}
    assert _rope(without_theta).theta == 2e6


@pytest.mark.parametrize("form", ["of transformers 5", "before"])
def test_gemma3_has_a_rope_for_windows_and_one_for_the_rest(form: str) -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    if form == "before":
        fields = {"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": linear}
    else:
        local = {"rope_type": "default", "rope_theta": 2e4}
        fields = {
            "rope_theta": None,
            "rope_parameters": {"full_attention": linear | {"rope_theta": 2e6}, "sliding_attention": local},
        }
    layers = ModelConfig.from_hf(
        hf_config("Gemma3ForCausalLM", hidden_act=None, sliding_window_pattern=2) | fields
    ).layers
    assert layers[0].rope == layers[2].rope == RopeConfig(2e4, 12)
    assert layers[1].rope == RopeConfig(2e6, 12, LinearScaling(8.0))


def test_what_gemma_configs_leave_out() -> None:
    """As the checkpoints have it: their config.json says neither that embeddings are tied nor that there are caps."""
    left_out = ["tie_word_embeddings", "head_dim", "hidden_act"]
    fields = {key: value for key, value in hf_config().items() if key not in left_out}
    gemma, gemma2, gemma3 = (
        ModelConfig.from_hf(fields | {"architectures": [f"{name}ForCausalLM"]})
        for name in ("Gemma", "Gemma2", "Gemma3")
    )
    for config in (gemma, gemma2, gemma3):
        assert (config.tie_word_embeddings, config.head_dim, config.activation) == (True, 256, "gelu_tanh")
        assert (config.norm_offset, config.embedding_scale) == (1.0, 48**0.5)
    assert (gemma.attention_scale, gemma2.attention_scale) == (1 / 16, 1 / 16)
    assert (gemma2.attention_softcap, gemma2.final_softcap) == (50.0, 30.0)
    assert (gemma3.attention_softcap, gemma3.final_softcap) == (None, None)
    assert (gemma.post_norms, gemma2.post_norms, gemma3.post_norms) == (False, True, True)
    assert (gemma2.qk_norm, gemma3.qk_norm) == (False, True)
    assert ModelConfig.from_hf(fields | {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"}) == gemma


@pytest.mark.parametrize(
    ("config", "feature", "value"),
    [
        (hf_config("OlmoForCausalLM"), "architecture", "OlmoForCausalLM"),
        (hf_config(rope_scaling={"rope_type": "proportional", "factor": 4.0}), "rope type", "proportional"),
        (hf_config(partial_rotary_factor=0.5), "partial_rotary_factor", 0.5),
        (hf_config(hidden_act="gelu"), "hidden_act", "gelu"),
        (hf_config(quantization_config={"quant_method": "gptq", "bits": 4}), "quantization_config", "gptq"),
        (hf_config("Qwen3ForCausalLM", layer_types=["chunked_attention"] * 3), "layer_types", "chunked_attention"),
        (hf_config("LlamaForCausalLM", layer_types=["sliding_attention"] * 3), "layer_types", "sliding_attention"),
        (
            hf_config("Gemma3ForCausalLM", hidden_act=None, use_bidirectional_attention=True),
            "use_bidirectional_attention",
            True,
        ),
        (hf_config("Gemma3ForCausalLM", attn_logit_softcapping=50.0), "attn_logit_softcapping", 50.0),
        (hf_config(final_logit_softcapping=30.0), "final_logit_softcapping", 30.0),
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
    assert _windows(config) == [None] * 3


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
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor must be a list of 6 numbers"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [0.0] * 6}},
            r"short_factor\[0\] must be a positive",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types must be a list of 3 names"),
        (_SLIDING_QWEN3 | {"sliding_window": None}, "sliding_window must be a positive integer, not None"),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]},
            "no_rope_layers must be a list of 3 numbers",
        ),
    ],
)
def test_fields_that_make_no_sense_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        ModelConfig.from_hf(hf_config(**fields))

"""How each family of decoders differs from Llama where its config.json does not say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of an architecture. `defaults` are fields that its config.json may leave out, as transformers has them."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    qkv_bias: bool = False  # always, whatever the config says
    attention_bias: bool = False  # the config's attention_bias counts: of queries, keys, values and output
    mlp_bias: bool = False  # the config's mlp_bias counts
    qk_norm: bool = False
    fused_projections: bool = False  # checkpoints hold qkv_proj and gate_up_proj
    partial_rotation: bool = False  # the config's partial_rotary_factor counts
    # Which layers have a sliding window, unless layer_types says it.
    windows: Literal["none", "all", "after_max_window_layers", "without_rope", "pattern"] = "none"
    nope_layers: bool = False  # the config's no_rope_layers count
    local_rope: bool = False  # layers with a window have a rope of their own
    # Gemma: norms multiply by 1 + weight, and embeddings by the root of their size.
    gemma: bool = False
    post_norms: bool = False  # what attention and MLP give is normalised before it is added
    attention_softcap: bool = False  # the config's attn_logit_softcapping counts
    final_softcap: bool = False  # the config's final_logit_softcapping counts
    query_scale: bool = False  # the config's query_pre_attn_scalar counts
    activation_field: str = "hidden_act"


_GEMMA_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}
_GEMMA2_DEFAULTS = _GEMMA_DEFAULTS | {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window_pattern": 2,
}

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(attention_bias=True, mlp_bias=True),
    "MistralForCausalLM": Family({"sliding_window": 4096}, windows="all"),
    "Qwen2ForCausalLM": Family(
        {"sliding_window": 4096, "max_window_layers": 28}, qkv_bias=True, windows="after_max_window_layers"
    ),
    "Qwen3ForCausalLM": Family(
        {"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        attention_bias=True,
        qk_norm=True,
        windows="after_max_window_layers",
    ),
    "SmolLM3ForCausalLM": Family(
        {"rope_theta": 2_000_000.0, "tie_word_embeddings": True},
        attention_bias=True,
        mlp_bias=True,
        windows="without_rope",
        nope_layers=True,
    ),
    "Phi3ForCausalLM": Family(fused_projections=True, partial_rotation=True, windows="all"),
    "GemmaForCausalLM": Family(_GEMMA_DEFAULTS | {"hidden_act": "gelu_pytorch_tanh"}, attention_bias=True, gemma=True),
    "Gemma2ForCausalLM": Family(
        _GEMMA2_DEFAULTS,
        attention_bias=True,
        windows="pattern",
        gemma=True,
        post_norms=True,
        attention_softcap=True,
        final_softcap=True,
        query_scale=True,
        activation_field="hidden_activation",
    ),
    "Gemma3ForCausalLM": Family(
        _GEMMA2_DEFAULTS
        | {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        attention_bias=True,
        qk_norm=True,
        windows="pattern",
        local_rope=True,
        gemma=True,
        post_norms=True,
        final_softcap=True,
        query_scale=True,
        activation_field="hidden_activation",
    ),
}

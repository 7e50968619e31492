"""Small models of every family, and transformers' own implementation of each as the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.weights import load_model

_BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_MODEL_TYPES = {"Gemma3ForCausalLM": "gemma3_text"}
_NULL_MEANS_NONE = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")  # and absent a default
# Windows of 24 keys: shorter than the tests' prompts, and no multiple of a page.
_GEMMA = {
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "sliding_window": 24,
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def hf_config(architecture: str = "LlamaForCausalLM", **fields: Any) -> dict[str, Any]:
    """A small Hugging Face config as in a config.json."""
    model_type = _MODEL_TYPES.get(architecture, architecture.removesuffix("ForCausalLM").lower())
    return _BASE | {"architectures": [architecture], "model_type": model_type} | fields


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": hf_config(),
    "llama, tied": hf_config(tie_word_embeddings=True),
    "llama, 9 heads, 3 KV heads": hf_config(hidden_size=72, num_attention_heads=9, num_key_value_heads=3, head_dim=64),
    "llama, one KV head, head_dim by default": hf_config(num_key_value_heads=1, head_dim=None),
    "llama, biases": hf_config(attention_bias=True, mlp_bias=True),
    # With this base two of the six frequencies lie where llama3 blends.
    "llama, rope llama3": hf_config(rope_theta=100.0, rope_scaling=_LLAMA3_ROPE),
    "llama, rope linear": hf_config(rope_scaling={"type": "linear", "factor": 4.0}),
    "llama, rope of transformers 5": hf_config(
        rope_theta=None, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    ),
    "llama, rope dynamic": hf_config(rope_scaling={"type": "dynamic", "factor": 4.0}),
    "llama, rope yarn": hf_config(
        rope_theta=100.0, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    ),
    "mistral": hf_config("MistralForCausalLM", sliding_window=None),
    "mistral, window": hf_config("MistralForCausalLM", sliding_window=24),
    "mistral, window of one": hf_config("MistralForCausalLM", sliding_window=1),
    "mistral, idle window": hf_config("MistralForCausalLM", sliding_window=512),
    "qwen2": hf_config("Qwen2ForCausalLM", head_dim=None, tie_word_embeddings=True, use_sliding_window=False),
    "qwen2, window in some layers": hf_config(
        "Qwen2ForCausalLM", head_dim=None, use_sliding_window=True, sliding_window=24, max_window_layers=1
    ),
    "qwen3": hf_config("Qwen3ForCausalLM", head_dim=32),
    "qwen3, tied, biases": hf_config("Qwen3ForCausalLM", tie_word_embeddings=True, attention_bias=True),
    "smollm3": hf_config(
        "SmolLM3ForCausalLM",
        num_hidden_layers=4,
        no_rope_layer_interval=2,
        tie_word_embeddings=True,
        sliding_window=None,
    ),
    "smollm3, window": hf_config(
        "SmolLM3ForCausalLM", no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=24, attention_bias=True
    ),
    "phi3": hf_config("Phi3ForCausalLM", sliding_window=None),
    "phi3, window, part of a head turned": hf_config(
        "Phi3ForCausalLM", sliding_window=24, partial_rotary_factor=0.5, head_dim=12
    ),
    "gemma": hf_config("GemmaForCausalLM", hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True),
    # Caps so low that they bend what these small models compute.
    "gemma2": hf_config("Gemma2ForCausalLM", **_GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma2, no caps": hf_config(
        "Gemma2ForCausalLM", **_GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "gemma3": hf_config(
        "Gemma3ForCausalLM",
        **_GEMMA,
        sliding_window_pattern=2,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
}


def decoder(config: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> Decoder:
    parsed = ModelConfig.from_hf(config)
    return load_model(parsed, random_weights(parsed, seed), dtype, "cpu")


@dataclass(frozen=True)
class Oracle:
    """transformers' model with the same weights as `decoder(config, seed)`, in float32."""

    model: transformers.PreTrainedModel

    @classmethod
    def of(cls, config: dict[str, Any], seed: int = 0) -> Oracle:
        fields = {key: value for key, value in config.items() if value is not None or key in _NULL_MEANS_NONE}
        hf = transformers.AutoConfig.for_model(**fields)
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_config(hf, attn_implementation="eager").eval()
        weights = dict(random_weights(ModelConfig.from_hf(config), seed))
        loaded = model.load_state_dict(weights, strict=False)
        assert not loaded.unexpected_keys
        assert set(loaded.missing_keys) <= {"lm_head.weight"}
        model.tie_weights()
        return cls(model)

    def logits(self, token_ids: list[int]) -> Tensor:
        """[tokens, vocab_size]."""
        with torch.inference_mode():
            logits: Tensor = self.model(torch.tensor([token_ids])).logits[0]
        return logits

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The next `num_tokens` tokens, each from a computation of the whole sequence anew."""
        token_ids = list(prompt)
        for _ in range(num_tokens):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(prompt) :]

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
    "tie_word_embeddings": False,
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
    model_type = architecture.removesuffix("ForCausalLM").lower()
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
    "mistral": hf_config("MistralForCausalLM", sliding_window=None),
    "mistral, idle window": hf_config("MistralForCausalLM", sliding_window=512),
    "qwen2": hf_config("Qwen2ForCausalLM", head_dim=None, tie_word_embeddings=True, use_sliding_window=False),
    "qwen3": hf_config("Qwen3ForCausalLM", head_dim=32),
    "qwen3, tied, biases": hf_config("Qwen3ForCausalLM", tie_word_embeddings=True, attention_bias=True),
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
        fields = {key: value for key, value in config.items() if value is not None}
        hf = transformers.AutoConfig.for_model(**fields)
        hf.sliding_window = config.get("sliding_window")  # where null means none, and absent a default
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

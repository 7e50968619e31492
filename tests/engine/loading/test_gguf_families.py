"""A GGUF file of each family gives the config and the weights that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.engine.loading.gguf_config import config_from_gguf
from services.engine.loading.gguf_file import read_gguf
from services.engine.loading.gguf_weights import iter_gguf
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from tests.engine.loading.gguf_files import write_gguf
from tests.engine.models.reference import FAMILIES, hf_config

Arrays = dict[str, npt.NDArray[Any]]

_MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# As the converter writes them, beside those that all have.
_METADATA: Mapping[str, dict[str, Any]] = {
    "smollm3": {},
    "phi3": {"attention.sliding_window": 24, "rope.dimension_count": 6},
    "gemma": {},
    "gemma2": {"attention.sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3": {"attention.sliding_window": 24, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
}
_CONFIGS = {
    "smollm3": FAMILIES["smollm3"] | {"no_rope_layer_interval": 4},
    "phi3": FAMILIES["phi3, window, part of a head turned"],
    "gemma": FAMILIES["gemma"],
    "gemma2": FAMILIES["gemma2"] | {"query_pre_attn_scalar": 12},
    "gemma3": FAMILIES["gemma3"] | {"query_pre_attn_scalar": 12, "sliding_window_pattern": 6, "num_hidden_layers": 7},
}


def _metadata(architecture: str, config: ModelConfig) -> dict[str, Any]:
    own = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": max(rope.theta for rope in config.ropes),
    }
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in (own | _METADATA[architecture]).items()},
    }


def _tensors(architecture: str, config: ModelConfig, weights: Arrays) -> Arrays:
    post_norm = "post_attention_norm" if config.post_norms else "ffn_norm"
    modules = _MODULES | {"post_attention_layernorm": post_norm}
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if architecture == "smollm3" else {}
    tensors = {}
    for name, array in weights.items():
        module = name.removesuffix(".weight")
        prefix = ""
        if module.startswith("model.layers."):
            _, _, layer, module = module.split(".", 3)
            prefix = f"blk.{layer}."
        stored = array + 1 if architecture.startswith("gemma") and array.ndim == 1 else array
        if (count := heads.get(modules[module])) is not None:  # halves of a head, row by row in turn
            stored = np.stack(np.split(array.reshape(count, config.head_dim, -1), 2, axis=1), axis=2)
            stored = stored.reshape(array.shape)
        tensors[f"{prefix}{modules[module]}.weight"] = stored
    return tensors


@pytest.mark.parametrize("architecture", _CONFIGS)
def test_config_and_weights_come_back(architecture: str, tmp_path: Path) -> None:
    config = ModelConfig.from_hf(_CONFIGS[architecture])
    weights = {name: tensor.numpy() for name, tensor in random_weights(config, seed=0)}
    tensors = _tensors(architecture, config, weights)
    path = write_gguf(tmp_path / "model.gguf", _metadata(architecture, config), tensors)
    read = config_from_gguf(read_gguf(path))
    assert ModelConfig.from_hf(read) == config
    arrays = dict(iter_gguf(path, read))
    assert arrays.keys() == weights.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, weights[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_scores_by_another_size(architecture: str, layers: int, tmp_path: Path) -> None:
    fields = _CONFIGS[architecture] | {"hidden_size": 96, "num_hidden_layers": layers}
    metadata = _metadata(architecture, ModelConfig.from_hf(fields))
    path = write_gguf(tmp_path / "model.gguf", metadata, {"token_embd.weight": np.zeros((97, 96), np.float32)})
    assert config_from_gguf(read_gguf(path))["query_pre_attn_scalar"] == 96 / 4


def test_phi3_s_factors_for_long_contexts(tmp_path: Path) -> None:
    short, long = [1.0 + i for i in range(6)], [2.0 + i for i in range(6)]
    scaling = {"type": "longrope", "short_factor": short, "long_factor": long}
    fields = hf_config("Phi3ForCausalLM", rope_scaling=scaling, original_max_position_embeddings=128)
    metadata = _metadata("phi3", ModelConfig.from_hf(fields)) | {
        "phi3.rope.dimension_count": 12,
        "phi3.attention.sliding_window": 0,
        "phi3.rope.scaling.original_context_length": 128,
    }
    tensors = {
        "token_embd.weight": np.zeros((97, 48), np.float32),
        "output.weight": np.zeros((97, 48), np.float32),
        "rope_factors_long.weight": np.array(long, np.float32),
        "rope_factors_short.weight": np.array(short, np.float32),
    }
    read = config_from_gguf(read_gguf(write_gguf(tmp_path / "model.gguf", metadata, tensors)))
    for max_model_len in (None, 128):
        assert ModelConfig.from_hf(read, max_model_len) == ModelConfig.from_hf(fields, max_model_len)

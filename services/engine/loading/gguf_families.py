"""What the families' configs say beyond Llama's, from GGUF metadata, and from what llama.cpp knows of them by heart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.engine.loading.gguf_reader import GgufReader

# The largest Gemma 2 and 3 alone divide scores by the root of hidden size / heads, all others by that of a head's size.
_LARGEST_GEMMA_LAYERS = {"gemma2": 46, "gemma3": 62}
_GEMMA3_LOCAL_THETA = 10_000.0


def family_fields(reader: GgufReader, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Fields to be added to, or put in place of, those that all families have."""
    match reader.file.architecture:
        case "smollm3":
            return {"hidden_act": "silu", "no_rope_layer_interval": 4}
        case "phi3":
            return _phi3(reader)
        case "gemma":
            return {"hidden_act": "gelu_pytorch_tanh"}
        case "gemma2":
            return _gemma(reader) | {
                "attn_logit_softcapping": reader.get("attn_logit_softcapping"),
                "final_logit_softcapping": reader.get("final_logit_softcapping"),
            }
        case "gemma3":
            local = {"rope_type": "default", "rope_theta": float(reader.get("rope.freq_base_swa", _GEMMA3_LOCAL_THETA))}
            return _gemma(reader) | {"rope_parameters": {"full_attention": dict(rope), "sliding_attention": local}}
    return {"hidden_act": "silu"}


def _phi3(reader: GgufReader) -> dict[str, Any]:
    head_dim = reader.head_dim()
    return {
        "hidden_act": "silu",
        "sliding_window": reader.get("attention.sliding_window") or None,
        "partial_rotary_factor": reader.get("rope.dimension_count", head_dim) / head_dim,
        "original_max_position_embeddings": reader.get(
            "rope.scaling.original_context_length", reader.count("context_length")
        ),
    }


def _gemma(reader: GgufReader) -> dict[str, Any]:
    is_largest = reader.count("block_count") == _LARGEST_GEMMA_LAYERS[reader.file.architecture]
    of_hidden_size = reader.count("embedding_length") // reader.count("attention.head_count")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": reader.count("attention.sliding_window"),
        "query_pre_attn_scalar": of_hidden_size if is_largest else reader.head_dim(),
    }

"""GGUF metadata → a model configuration in Hugging Face form, as config.json would say it."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.loading.errors import DamagedFile, UnsupportedArchitecture
from services.engine.loading.gguf_families import family_fields
from services.engine.loading.gguf_file import GgufFile
from services.engine.loading.gguf_reader import GgufReader
from services.engine.loading.gguf_rope import rope_parameters

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}

MODEL_TYPES = {"gemma3": "gemma3_text"}  # those that are not named after the architecture

END_OF_SEQUENCE_KEYS = ("eos", "eot", "eom")  # of sequence, turn, and message (a tool call)


def config_from_gguf(file: GgufFile) -> dict[str, Any]:
    """The configuration. Raises UnsupportedArchitecture for what it cannot say exactly, DamagedFile for lost keys."""
    architecture = file.architecture
    if architecture not in ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"{file.path.name} has the architecture {architecture!r}; GGUF files can have {', '.join(ARCHITECTURES)}"
        )
    if (parts := file.metadata.get("split.count", 1)) > 1:
        raise UnsupportedArchitecture(
            f"{file.path.name} is one of {parts} parts: merge them with llama-gguf-split --merge"
        )
    reader = GgufReader(file)
    if reader.get("expert_count", 0):
        raise UnsupportedArchitecture(
            f"{file.path.name} is a mixture of experts; of GGUF files, only dense ones can be served"
        )
    rope = rope_parameters(reader)
    return {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": MODEL_TYPES.get(architecture, architecture),
        "vocab_size": vocab_size(file),
        "hidden_size": reader.count("embedding_length"),
        "intermediate_size": reader.count("feed_forward_length"),
        "num_hidden_layers": reader.count("block_count"),
        "num_attention_heads": reader.count("attention.head_count"),
        "num_key_value_heads": reader.kv_heads(),
        "head_dim": reader.head_dim(),
        "max_position_embeddings": reader.count("context_length"),
        "rms_norm_eps": _shortest_decimal(reader.require("attention.layer_norm_rms_epsilon")),
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted(eos_token_ids(file)) or None,
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
        **family_fields(reader, rope),
    }


def vocab_size(file: GgufFile) -> int:
    """Rows of the embedding, which may be more than the tokenizer has tokens."""
    if (embedding := file.tensors.get("token_embd.weight")) is None:
        raise DamagedFile(f"{file.path} has no tensor token_embd.weight")
    return embedding.shape[0]


def eos_token_ids(file: GgufFile) -> frozenset[int]:
    """Every id that the file says ends a sequence, a turn or a message."""
    ids = (file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in END_OF_SEQUENCE_KEYS)
    return frozenset(id for id in ids if id is not None)


def _shortest_decimal(value: float) -> float:
    """What was meant before it was stored in 32 bits: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))

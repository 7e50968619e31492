"""GGUF metadata → a model configuration in Hugging Face form, as config.json would say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from services.engine.loading.errors import DamagedFile, UnsupportedArchitecture
from services.engine.loading.gguf_file import GgufFile

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

END_OF_SEQUENCE_KEYS = ("eos", "eot", "eom")  # of sequence, turn, and message (a tool call)

# Llama 3.1's scaling of rope: the same in every model that has it, but for the factor. GGUF keeps its result alone.
LLAMA3_ORIGINAL_CONTEXT = 8192
LLAMA3_LOW_FREQ_FACTOR = 1.0
LLAMA3_HIGH_FREQ_FACTOR = 4.0


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
    reader = _Reader(file)
    if reader.get("expert_count", 0):
        raise UnsupportedArchitecture(
            f"{file.path.name} is a mixture of experts; of GGUF files, only dense ones can be served"
        )
    rope = _rope_parameters(reader)
    return {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": vocab_size(file),
        "hidden_size": reader.count("embedding_length"),
        "intermediate_size": reader.count("feed_forward_length"),
        "num_hidden_layers": reader.count("block_count"),
        "num_attention_heads": reader.count("attention.head_count"),
        "num_key_value_heads": reader.kv_heads(),
        "head_dim": reader.head_dim(),
        "max_position_embeddings": reader.count("context_length"),
        "rms_norm_eps": _shortest_decimal(reader.require("attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted(eos_token_ids(file)) or None,
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
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


@dataclass(frozen=True, slots=True)
class _Reader:
    """The metadata under the architecture's own prefix."""

    file: GgufFile

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.file.architecture}.{key}", default)

    def require(self, key: str) -> Any:
        if (value := self.get(key)) is None:
            raise DamagedFile(f"{self.file.path} lacks {self.file.architecture}.{key}")
        return value

    def count(self, key: str) -> int:
        if isinstance(value := self.require(key), list):
            raise UnsupportedArchitecture(f"{self.file.path.name} has a {key} for each layer; one for all is supported")
        return int(value)

    def kv_heads(self) -> int:
        return self.count("attention.head_count_kv" if self.get("attention.head_count_kv") else "attention.head_count")

    def head_dim(self) -> int:
        """Elements of a head, all of which rope must turn."""
        head_dim = self.get("attention.key_length") or self.count("embedding_length") // self.count(
            "attention.head_count"
        )
        if self.get("rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedArchitecture(f"{self.file.path.name} turns only a part of each head by rope")
        if self.get("attention.value_length", head_dim) != head_dim:
            raise UnsupportedArchitecture(f"{self.file.path.name} has values of another length than keys")
        return int(head_dim)


def _rope_parameters(reader: _Reader) -> dict[str, Any]:
    """Rope in the form of transformers 5: type, theta and what the type needs."""
    theta = float(reader.get("rope.freq_base", 10_000.0))
    kind = reader.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in reader.file.tensors:
        return _llama3_rope(reader, theta)
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


def _llama3_rope(reader: _Reader, theta: float) -> dict[str, Any]:
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


def _shortest_decimal(value: float) -> float:
    """What was meant before it was stored in 32 bits: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))

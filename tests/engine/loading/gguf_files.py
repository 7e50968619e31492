"""Writes small GGUF files as llama.cpp's converter does, by the gguf package's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

Arrays = Mapping[str, npt.NDArray[Any]]

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_MODEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Arrays | None = None,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """`metadata` has whole keys, general.architecture among them. One-dimensional tensors stay in float32."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, array in (tensors or {}).items():
        if array.ndim == 1 or quantization == GGMLQuantizationType.F32:
            writer.add_tensor(name, array.astype(np.float32))
        else:
            data = gguf.quants.quantize(array, quantization)
            writer.add_tensor(name, data, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_metadata(architecture: str, **changes: Any) -> dict[str, Any]:
    """Metadata of the tiny models of tests/support/models.py, without a tokenizer. `changes` lack the prefix."""
    own = {
        "context_length": 2048,
        "block_count": 3,
        "embedding_length": 96,
        "feed_forward_length": 128,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10_000.0,
        **changes,
    }
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in own.items() if value is not None},
    }


def gguf_tensors(architecture: str, weights: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Hugging Face names and rows → GGUF ones; queries and keys of `llama` rearranged for interleaved rope."""
    heads = {"attn_q": 6, "attn_k": 2} if architecture == "llama" else {}
    tensors = {}
    for name, array in weights.items():
        gguf_name = _gguf_name(name)
        stored = array
        if (count := heads.get(gguf_name.split(".")[-2])) is not None:
            # Row i of a head's first half comes right before row i of its second half.
            stored = np.stack(np.split(array.reshape(count, 16, -1), 2, axis=1), axis=2).reshape(array.shape)
        tensors[gguf_name] = stored
    return tensors


def _gguf_name(name: str) -> str:
    module, leaf = name.rsplit(".", 1)
    if module in _MODEL:
        return f"{_MODEL[module]}.{leaf}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest]}.{leaf}"

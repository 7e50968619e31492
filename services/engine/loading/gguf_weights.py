"""Tensors of a GGUF file → Hugging Face names, shapes and order of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from services.engine.loading.errors import UnsupportedArchitecture, UnsupportedQuantization
from services.engine.loading.gguf_blocks import BLOCK_TYPES, GgufBlocks
from services.engine.loading.gguf_file import GgufFile, TensorInfo, read_gguf

_MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# With norms behind attention and MLP.
_POST_NORM_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OWN_LAYER_NAMES: Mapping[str, Mapping[str, str]] = {
    "gemma2": _POST_NORM_NAMES,
    "gemma3": _POST_NORM_NAMES,
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}
_INTERLEAVED_ROPE = ("llama", "smollm3")
_OFFSET_NORMS = ("gemma", "gemma2", "gemma3")  # the file has 1 + weight
_IN_CONFIG = {
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
}  # config_from_gguf reads them
_PARAMETER = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<leaf>weight|bias)")

_PLAIN: Mapping[GGMLQuantizationType, npt.DTypeLike] = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: np.uint16,  # its bits: numpy has no such type
}


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix of the file in blocks that need no dequantizing."""

    type_name: str  # GgufBlocks.name
    num_weights: int


def stored_blocks(path: Path) -> dict[str, StoredBlocks]:
    """The matrices that `iter_gguf` gives as blocks, by Hugging Face name. Raises UnsupportedArchitecture."""
    file = read_gguf(path)
    return {
        hugging_face_name(info.name, file.architecture): StoredBlocks(BLOCK_TYPES[info.ggml_type], prod(info.shape))
        for info in file.tensors.values()
        if _in_blocks(info)
    }


def iter_gguf(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, npt.NDArray[Any] | GgufBlocks]]:
    """As iter_stored, for a GGUF file. Raises UnsupportedArchitecture or UnsupportedQuantization."""
    file = read_gguf(path)
    for info in file.tensors.values():
        if info.name not in _IN_CONFIG:
            tensor, name = GgufTensor(file, info, config), hugging_face_name(info.name, file.architecture)
            yield name, tensor.blocks() if _in_blocks(info) else tensor[()]


def iter_gguf_tensors(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, GgufTensor]]:
    """As iter_gguf, but nothing is read yet. Raises UnsupportedArchitecture."""
    file = read_gguf(path)
    for info in file.tensors.values():
        if info.name not in _IN_CONFIG:
            yield hugging_face_name(info.name, file.architecture), GgufTensor(file, info, config)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in Hugging Face's order of rows, which is read and dequantized as far as it is asked for."""

    file: GgufFile
    info: TensorInfo
    config: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    def __getitem__(self, part: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Some rows, and some columns of them; of queries and keys whole heads. Raises UnsupportedQuantization."""
        rows, columns = (*part, slice(None), slice(None))[:2]
        data = self._rows(rows)
        if len(self.shape) == 1:
            array = _array(self.info, data.reshape(-1))
        else:
            first, last, _ = columns.indices(self.shape[1])
            block_length, block_bytes = GGML_QUANT_SIZES[self.info.ggml_type]
            start = first // block_length
            data = data[:, start * block_bytes : -(-last // block_length) * block_bytes]
            array = _array(self.info, data)[:, first - start * block_length : last - start * block_length]
        if self.file.architecture in _OFFSET_NORMS and self.info.name.endswith("norm.weight"):
            array = array.astype(np.float32) - 1
        return array

    def blocks(self) -> GgufBlocks:
        """The whole matrix as it is stored."""
        return GgufBlocks(np.ascontiguousarray(self._rows(slice(None))), self.info.ggml_type)

    def _rows(self, rows: slice) -> npt.NDArray[np.uint8]:
        """Rows as they are stored, still quantized: [rows, bytes of a row].

        For the architectures `llama` and `smollm3`, the writer put the two halves of each head's queries and keys
        together pair by pair, as interleaved rope wants them; here they are parted again. Whole rows move, so this
        needs no dequantizing.
        """
        num_rows = self.shape[0]
        data = self.file.data(self.info).reshape(num_rows, -1)[rows]  # a vector has one element a row
        module = self.info.name.rsplit(".", 2)[-2]
        fields = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        if self.file.architecture not in _INTERLEAVED_ROPE or module not in fields:
            return data
        rows_of_a_head = num_rows // self.config[fields[module]]
        paired = data.reshape(-1, rows_of_a_head // 2, 2, data.shape[-1])
        return paired.swapaxes(1, 2).reshape(data.shape)


def hugging_face_name(name: str, architecture: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`. Raises UnsupportedArchitecture."""
    layer_names = {**_LAYER_NAMES, **_OWN_LAYER_NAMES.get(architecture, {})}
    if match := _PARAMETER.fullmatch(name):
        layer, module, leaf = match.group("layer", "module", "leaf")
        if layer is None and module in _MODEL_NAMES:
            return f"{_MODEL_NAMES[module]}.{leaf}"
        if layer is not None and module in layer_names:
            return f"model.layers.{layer}.{layer_names[module]}.{leaf}"
    raise UnsupportedArchitecture(f"the GGUF file has a tensor {name}, which has no counterpart in a dense decoder")


def _in_blocks(info: TensorInfo) -> bool:
    return info.ggml_type in BLOCK_TYPES and len(info.shape) == 2


def _array(info: TensorInfo, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """data: [rows, bytes of a row], or the bytes of a vector -> [rows, columns], or the vector."""
    if (dtype := _PLAIN.get(info.ggml_type)) is not None:
        return np.array(data, order="C").view(dtype)
    try:
        values: npt.NDArray[np.float32] = gguf.quants.dequantize(data, info.ggml_type)
    except NotImplementedError as error:
        raise UnsupportedQuantization(
            f"the tensor {info.name} is stored as {info.ggml_type.name}, which cannot be read"
        ) from error
    return values

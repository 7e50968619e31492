"""The Llama-like decoder: RMSNorm, rotary attention with grouped KV heads, SwiGLU. Inference only, on plain tensors.

Attention itself is the caller's: the decoder hands out queries, keys and values and knows nothing of KV pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from services.engine.models.config import ModelConfig
from services.engine.models.rope import Rotation, rotation

# attend(layer, queries [tokens, num_heads, head_dim], keys and values [tokens, num_kv_heads, head_dim])
# -> [tokens, num_heads * head_dim]. It stores keys and values and attends to all that the tokens may see.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Linear:
    """weight: [out, in]; bias: [out] or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, in] -> [rows, out]."""
        if x.shape[0] == 1:  # on CPU a matrix-vector product reads bf16 weights 1.4 to 1.8 times faster than F.linear
            row = torch.mv(self.weight, x[0]) if self.bias is None else torch.addmv(self.bias, self.weight, x[0])
            return row[None]
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """weight: [size of the last dimension]."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections around attention. q, k and v are one product; `q_norm` and `k_norm` (Qwen3) are per head."""

    qkv: Linear
    output: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    num_heads: int
    num_kv_heads: int

    def __call__(self, x: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        num_qk_heads = self.num_heads + self.num_kv_heads
        heads = self.qkv(x).view(x.shape[0], num_qk_heads + self.num_kv_heads, -1)
        qk, v = heads[:, :num_qk_heads], heads[:, num_qk_heads:]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, : self.num_heads]), self.k_norm(qk[:, self.num_heads :])), 1)
        qk = rotation.apply(qk)
        return self.output(attend(layer, qk[:, : self.num_heads], qk[:, self.num_heads :], v))


@dataclass(frozen=True, slots=True)
class MLP:
    """SwiGLU (arXiv 2002.05202). Gate and up projection are one product."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate).mul_(up))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: MLP


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model's weights, all of one dtype on one device, and how a step's tokens go through them."""

    config: ModelConfig
    embeddings: Tensor  # [vocab_size, hidden_size]
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm
    lm_head: Linear  # its weight is `embeddings` itself where they are tied
    inverse_frequencies: Tensor  # [head_dim / 2], float32

    @property
    def dtype(self) -> torch.dtype:
        return self.embeddings.dtype

    @property
    def device(self) -> torch.device:
        return self.embeddings.device

    def hidden_states(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Runs all layers. token_ids, positions: [tokens], int64 -> [tokens, hidden_size], before the last norm.

        Tokens of several sequences may stand in any order: only `attend` relates them to each other.
        """
        turned = rotation(self.inverse_frequencies, positions, self.dtype)
        x = F.embedding(token_ids, self.embeddings)
        for index, layer in enumerate(self.layers):
            x = x + layer.attention(layer.attention_norm(x), turned, index, attend)
            x = x + layer.mlp(layer.mlp_norm(x))
        return x

    def logits(self, hidden_states: Tensor) -> Tensor:
        """hidden_states: [rows, hidden_size], as `hidden_states` returns them -> [rows, vocab_size]."""
        return self.lm_head(self.norm(hidden_states))

"""The Llama-like decoder: RMSNorm, rotary attention with grouped KV heads, gated MLP. Inference only, on plain tensors.

What families add to that (norms behind attention and MLP, caps, layers of several kinds) is a matter of configuration.

Attention itself is the caller's: the decoder hands out queries, keys and values and knows nothing of KV pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from services.engine.models.config import Activation, ModelConfig
from services.engine.models.layer_ops import LayerOps, Rotate, TorchOps
from services.engine.models.norm import RMSNorm
from services.engine.models.rope import Rope

# attend(layer, queries [tokens, num_heads, head_dim], keys and values [tokens, num_kv_heads, head_dim])
# -> [tokens, num_heads * head_dim]. It stores keys and values and attends to all that the tokens may see.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

Projection = Callable[[Tensor], Tensor]  # [rows, in] -> [rows, out]


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
class Embedding:
    """weight: [vocab_size, hidden_size]."""

    weight: Tensor

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids: [tokens], int64 -> [tokens, hidden_size]."""
        return F.embedding(token_ids, self.weight)


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections around attention. q, k and v are one product; `q_norm` and `k_norm` (Qwen3) are per head."""

    qkv: Projection
    output: Projection
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    num_heads: int
    num_kv_heads: int

    def __call__(self, x: Tensor, rotate: Rotate | None, layer: int, attend: Attend) -> Tensor:
        num_qk_heads = self.num_heads + self.num_kv_heads
        heads = self.qkv(x).view(x.shape[0], num_qk_heads + self.num_kv_heads, -1)
        qk, v = heads[:, :num_qk_heads], heads[:, num_qk_heads:]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, : self.num_heads]), self.k_norm(qk[:, self.num_heads :])), 1)
        if rotate is not None:
            qk = rotate(qk)
        return self.output(attend(layer, qk[:, : self.num_heads], qk[:, self.num_heads :], v))


@dataclass(frozen=True, slots=True)
class MLP:
    """SwiGLU or GEGLU (arXiv 2002.05202). Gate and up projection are one product."""

    gate_up: Projection
    down: Projection
    activation: Activation

    def __call__(self, x: Tensor, ops: LayerOps) -> Tensor:
        return self.down(ops.gated(self.gate_up(x), self.activation))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """`rope`: which of the decoder's ropes turns queries and keys, if any. Post-norms are Gemma's."""

    rope: int | None
    attention_norm: RMSNorm
    attention: Attention
    attention_post_norm: RMSNorm | None
    mlp_norm: RMSNorm
    mlp: MLP
    mlp_post_norm: RMSNorm | None


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model's weights, on one device and of one dtype but for quantized matrices, and how a step's tokens go through
    them.

    Of a model that is divided among ranks (`parallel.py`) it is one rank's part; `config` then has that part's sizes.
    """

    config: ModelConfig
    embeddings: Tensor  # [vocab_size, hidden_size]
    embed: Callable[[Tensor], Tensor]  # token ids [tokens] -> their rows of `embeddings`
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm
    lm_head: Projection  # its weight is `embeddings` itself where they are tied
    ropes: tuple[Rope, ...]
    ops: LayerOps = field(default_factory=TorchOps)

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
        ops = self.ops
        rotations = [ops.rotate(rope, positions, self.dtype) for rope in self.ropes]
        residual = self.embed(token_ids) * self.config.embedding_scale
        x = torch.zeros_like(residual)
        for index, layer in enumerate(self.layers):
            x, residual = ops.add_and_norm(layer.attention_norm, x, residual)
            rotate = None if layer.rope is None else rotations[layer.rope]
            x = self._normed(layer.attention(x, rotate, index, attend), layer.attention_post_norm)
            x, residual = ops.add_and_norm(layer.mlp_norm, x, residual)
            x = self._normed(layer.mlp(x, ops), layer.mlp_post_norm)
        return residual + x

    def logits(self, hidden_states: Tensor) -> Tensor:
        """hidden_states: [rows, hidden_size], as `hidden_states` returns them -> [rows, vocab_size].

        Of a divided model rank 0 has them all, and the other ranks have no row.
        """
        logits = self.lm_head(self.norm(hidden_states))
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _normed(self, x: Tensor, norm: RMSNorm | None) -> Tensor:
        return x if norm is None else self.ops.norm(norm, x)

"""The layers in which tensor-parallel ranks meet. Everything else of a decoder is each rank's own.

Each has the signature of the layer that it stands for in a model that is not divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from services.engine.models.decoder import Projection
from services.engine.models.sharding import Shard


class Collectives(Protocol):
    """What ranks do together: all of them call the same operations in the same order, with equal shapes."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks, the same on all of them. `x` is contiguous and may be overwritten."""
        ...

    def gather(self, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks, in their order, at rank 0; nothing elsewhere."""
        ...

    def broadcast(self, x: Tensor) -> None:
        """Overwrites `x`, which is contiguous, with rank 0's."""
        ...


@dataclass(frozen=True, slots=True)
class RowParallelLinear:
    """A product whose inputs are divided: each rank's result is a part of the sum.

    part: [rows, the rank's inputs] -> [rows, out], without a bias; bias: [out] or None, added once, to the sum.
    """

    part: Projection
    bias: Tensor | None
    collectives: Collectives

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, the rank's inputs] -> [rows, out]."""
        total = self.collectives.sum(self.part(x))
        return total if self.bias is None else total.add_(self.bias)


@dataclass(frozen=True, slots=True)
class VocabParallelEmbedding:
    """weight: [the rank's token ids, hidden_size]."""

    weight: Tensor
    shard: Shard
    collectives: Collectives

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids: [tokens], int64 -> [tokens, hidden_size]."""
        vocab = self.shard.vocab
        is_own = (token_ids >= vocab.start) & (token_ids < vocab.stop)
        own = F.embedding((token_ids - vocab.start).masked_fill_(~is_own, 0), self.weight)
        return self.collectives.sum(own.masked_fill_(~is_own[:, None], 0.0))


@dataclass(frozen=True, slots=True)
class VocabParallelHead:
    """weight: [the rank's token ids, hidden_size]."""

    weight: Tensor
    shard: Shard
    collectives: Collectives

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, hidden_size] -> [rows, vocab_size] at rank 0, which samples; [0, vocab_size] elsewhere."""
        widths = [len(self.shard.vocab_of(rank)) for rank in range(self.shard.size)]
        logits = F.linear(x, self.weight)
        parts = self.collectives.gather(F.pad(logits, (0, max(widths) - logits.shape[-1])))  # of equal shapes
        if not parts:
            return logits.new_empty((0, self.shard.config.vocab_size))
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], -1)

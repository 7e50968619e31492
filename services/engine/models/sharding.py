"""Which part of a model each of several tensor-parallel ranks holds.

Attention is split by KV groups: a KV head and the query heads that share it stay together, so that a rank attends by
itself. With at most as many ranks as KV heads, each rank takes whole groups, some one more than others where they do
not divide. With more ranks than KV heads, several ranks hold the same KV head and divide its query heads. The MLP is
split by its inner elements, embedding and output projection by the vocabulary. (Megatron-LM, arXiv 1909.08053.)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from services.engine.models.config import ModelConfig
from services.engine.models.errors import UnsupportedModelError

_ALL = slice(None)


@dataclass(frozen=True)
class Shard:
    """The part of rank `rank` out of `size`. Ranges are indices into the whole model."""

    config: ModelConfig  # the whole model's
    rank: int
    size: int
    heads: range
    kv_heads: range
    intermediate: range  # elements between the MLP's projections
    vocab: range

    @classmethod
    def of(cls, config: ModelConfig, rank: int, size: int) -> Shard:
        """Raises UnsupportedModelError where a rank would be left without a query head."""
        if size > config.num_heads:
            limit = f"at most the model's {config.num_heads} attention heads"
            raise UnsupportedModelError("tensor-parallel-size", size, (limit,))
        heads, kv_heads = _attention_heads(config, rank, size)
        return cls(
            config,
            rank,
            size,
            heads,
            kv_heads,
            intermediate=_part(config.intermediate_size, rank, size),
            vocab=_part(config.vocab_size, rank, size),
        )

    @cached_property
    def local_config(self) -> ModelConfig:
        """The rank's part as a model of its own: fewer heads and a narrower MLP. `vocab_size` stays the whole one."""
        return dataclasses.replace(
            self.config,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.intermediate),
            fused_projections=False,
        )

    def vocab_of(self, rank: int) -> range:
        """The token ids whose rows another rank holds."""
        return _part(self.config.vocab_size, rank, self.size)

    def part_of(self, name: str) -> tuple[slice, ...]:
        """What the rank holds of a tensor: rows and, of a matrix, columns.

        Biases that are added after the ranks' sums, and norms, are whole on every rank.
        """
        *_, module, leaf = name.split(".")
        head_dim = self.config.head_dim
        by_rows = {
            "embed_tokens": _slice(self.vocab),
            "lm_head": _slice(self.vocab),
            "q_proj": _slice(self.heads, head_dim),
            "k_proj": _slice(self.kv_heads, head_dim),
            "v_proj": _slice(self.kv_heads, head_dim),
            "gate_proj": _slice(self.intermediate),
            "up_proj": _slice(self.intermediate),
        }
        by_columns = {"o_proj": _slice(self.heads, head_dim), "down_proj": _slice(self.intermediate)}
        if (rows := by_rows.get(module)) is not None:
            return (rows, _ALL) if leaf == "weight" else (rows,)
        if leaf == "weight" and (columns := by_columns.get(module)) is not None:
            return _ALL, columns
        return (_ALL,)


def _attention_heads(config: ModelConfig, rank: int, size: int) -> tuple[range, range]:
    """Query heads and KV heads of a rank."""
    group = config.num_heads // config.num_kv_heads
    if size <= config.num_kv_heads:
        kv_heads = _part(config.num_kv_heads, rank, size)
        return range(kv_heads.start * group, kv_heads.stop * group), kv_heads
    for kv_head in range(config.num_kv_heads):
        sharers = _part(size, kv_head, config.num_kv_heads)
        if rank in sharers:
            heads = _part(group, rank - sharers.start, len(sharers))
            first = kv_head * group
            return range(first + heads.start, first + heads.stop), range(kv_head, kv_head + 1)
    raise AssertionError(f"rank {rank} of {size} has no KV head")


def _part(total: int, rank: int, size: int) -> range:
    """`total` things divided among `size`, in order; the sizes differ by one at most, and none is below the first."""
    return range(total * rank // size, total * (rank + 1) // size)


def _slice(things: range, width: int = 1) -> slice:
    return slice(things.start * width, things.stop * width)

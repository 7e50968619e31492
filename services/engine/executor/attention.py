"""Attention over paged keys and values: the interface of its backends, and the one in plain torch.

A backend looks at a step once (`prepare`) and is then called once per layer, so whatever depends on the step alone
(page tables, lengths, masks) is made once. In each layer it first writes the keys and values of all sequences and
only then attends, because a sequence may share a page that another one fills in the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from services.engine.executor.batch import StepBatch
from services.engine.executor.kv_pool import KvPool
from services.engine.models.decoder import Attend
from services.engine.plan import SequencePlan

_SHORT = 16  # pages; decodes up to this length are one group, longer ones are grouped by powers of two


class AttentionBackend(Protocol):
    """Owns nothing but scratch space: keys and values are in the KV pool that it was made with."""

    def prepare(self, batch: StepBatch) -> Attend:
        """What the decoder shall call in each layer of this step. It is valid until the next `prepare`."""
        ...


class TorchAttention:
    """The reference: pages are gathered into contiguous copies for `scaled_dot_product_attention`."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool

    def prepare(self, batch: StepBatch) -> Attend:
        parts: list[_DecodeGroup | _PrefillChunk] = [
            *_decode_groups(batch, self._pool),
            *_prefill_chunks(batch, self._pool),
        ]
        return _TorchStep(self._pool, batch.slots, parts).attend


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes of similar length, one query row each, padded to the longest."""

    rows: slice
    pages: Tensor  # [group * longest], int64: page tables one after another, padded with page 0
    mask: Tensor  # [group, 1, 1, longest * page_size], added to the scores: it hides the padding

    def attend(self, pool: KvPool, layer: int, q: Tensor) -> Tensor:
        """q: [group, num_heads, head_dim] -> [group, num_heads * head_dim]."""
        keys, values = pool.gather(layer, self.pages)
        size, num_kv_heads, head_dim = q.shape[0], *keys.shape[1:]
        # The query heads that share a KV head stand where a prompt's positions would: nothing is repeated for them.
        attended = scaled_dot_product_attention(
            q.view(size, num_kv_heads, -1, head_dim),
            keys.view(size, -1, num_kv_heads, head_dim).transpose(1, 2),
            values.view(size, -1, num_kv_heads, head_dim).transpose(1, 2),
            attn_mask=self.mask,
        )
        return attended.flatten(1)


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    """Several tokens of one sequence, and all that came before them."""

    rows: slice
    pages: Tensor  # [pages up to the chunk's end], int64
    end: int  # tokens of the sequence up to the chunk's end
    mask: Tensor | None  # [chunk, end], added to the scores; None for a chunk that starts its sequence: plainly causal

    def attend(self, pool: KvPool, layer: int, q: Tensor) -> Tensor:
        """q: [chunk, num_heads, head_dim] -> [chunk, num_heads * head_dim]."""
        keys, values = pool.gather(layer, self.pages)
        attended = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[: self.end].transpose(0, 1)[None],
            values[: self.end].transpose(0, 1)[None],
            attn_mask=self.mask,
            is_causal=self.mask is None,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class _TorchStep:
    pool: KvPool
    slots: Tensor
    parts: list[_DecodeGroup | _PrefillChunk]  # in the order of their rows

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.write(layer, self.slots, k, v)
        parts = [part.attend(self.pool, layer, q[part.rows]) for part in self.parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode_groups(batch: StepBatch, pool: KvPool) -> Iterable[_DecodeGroup]:
    """Groups decodes (shortest first) so that padding at most doubles what is read of long sequences."""
    first = 0
    for _, members in groupby(batch.decodes, key=lambda s: max(s.start // pool.page_size + 1, _SHORT).bit_length()):
        group = list(members)
        rows = slice(first, first + len(group))
        yield _decode_group(group, rows, batch.positions[rows], pool)
        first = rows.stop


def _decode_group(group: Sequence[SequencePlan], rows: slice, positions: Tensor, pool: KvPool) -> _DecodeGroup:
    longest = max(s.start for s in group) // pool.page_size + 1
    pages = [[*s.page_table[:longest], *[0] * (longest - len(s.page_table))] for s in group]
    return _DecodeGroup(
        rows=rows,
        pages=torch.tensor(pages, dtype=torch.int64, device=positions.device).flatten(),
        mask=_causal_mask(positions, longest * pool.page_size, pool.dtype)[:, None, None],
    )


def _prefill_chunks(batch: StepBatch, pool: KvPool) -> Iterable[_PrefillChunk]:
    first = len(batch.decodes)
    for sequence in batch.prefills:
        rows = slice(first, first + len(sequence.token_ids))
        end = sequence.start + len(sequence.token_ids)
        positions = batch.positions[rows]
        pages = sequence.page_table[: (end - 1) // pool.page_size + 1]
        yield _PrefillChunk(
            rows=rows,
            pages=torch.tensor(pages, dtype=torch.int64, device=positions.device),
            end=end,
            mask=_causal_mask(positions, end, pool.dtype) if sequence.start else None,
        )
        first = rows.stop


def _causal_mask(positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """0 where a query at one of `positions` sees the key at 0 … length - 1, minus infinity where not."""
    hidden = torch.arange(length, device=positions.device) > positions[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, -torch.inf)

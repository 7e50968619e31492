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
from services.engine.executor.uploads import Uploads
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Attend
from services.engine.plan import SequencePlan

_SHORT = 16  # pages; decodes up to this length are one group, longer ones are grouped by powers of two


class FixedDecodes(Protocol):
    """Attention of a fixed number of decodes, over tensors that stay where they are: it can be recorded as a graph."""

    def fill(self, batch: StepBatch) -> None:
        """Takes over where the keys and values of a step's decodes are. There are exactly as many as it is made for."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `Attend` that reads the tensors that `fill` set, and nothing else that changes from step to step."""
        ...


class AttentionBackend(Protocol):
    """Owns nothing but scratch space: keys and values are in the KV pool that it was made with."""

    def prepare(self, batch: StepBatch) -> Attend:
        """What the decoder shall call in each layer of this step. It is valid until the next `prepare`."""
        ...

    def fixed_decodes(self, sizes: Sequence[int], pages_per_sequence: int) -> Sequence[FixedDecodes]:
        """One for each of `sizes`, decodes. Only one of them is in use at a time: they may share tensors.

        pages_per_sequence: of the longest sequence.
        """
        ...


class TorchAttention:
    """The reference: pages are gathered into contiguous copies for `scaled_dot_product_attention`."""

    def __init__(self, pool: KvPool, config: ModelConfig) -> None:
        self._pool = pool
        self._windows = [layer.window for layer in config.layers]
        self._scores = _Scores(config.attention_scale, config.attention_softcap)

    def prepare(self, batch: StepBatch) -> Attend:
        parts: list[_DecodeGroup | _PrefillChunk] = [
            *_decode_groups(batch, self._pool),
            *_prefill_chunks(batch, self._pool),
        ]
        masks = {window: [part.mask(window, self._pool.dtype) for part in parts] for window in set(self._windows)}
        layer_masks = [masks[window] for window in self._windows]
        return _TorchStep(self._pool, self._scores, batch.slots, parts, layer_masks).attend

    def fixed_decodes(self, sizes: Sequence[int], pages_per_sequence: int) -> Sequence[FixedDecodes]:
        """Each decode reads as many pages as the longest sequence has: right, and slow."""
        return [_TorchFixedDecodes.of(self._pool, self._scores, self._windows, n, pages_per_sequence) for n in sizes]


@dataclass(frozen=True, slots=True)
class _Scores:
    """How products of queries and keys become scores."""

    scale: float
    softcap: float | None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q: [batch, heads, queries, head_dim]; keys, values: [batch, KV heads, keys, head_dim] -> as q.

        `mask` is added to the scores; None: plainly causal. Query heads that share a KV head lie together.
        """
        if self.softcap is None:
            return scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=True
            )
        group = q.shape[1] // keys.shape[1]
        scores = q @ keys.repeat_interleave(group, 1).transpose(2, 3) * self.scale
        capped = torch.tanh(scores.float() / self.softcap) * self.softcap
        if mask is None:
            mask = torch.full(capped.shape[2:], -torch.inf, device=q.device).triu_(1)
        weights = (capped + mask).softmax(-1).to(q.dtype)
        return weights @ values.repeat_interleave(group, 1)


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes of similar length, one query row each, padded to the longest."""

    rows: slice
    positions: Tensor  # [group]
    pages: Tensor  # [group * longest], int64: page tables one after another, padded with page 0
    length: int  # tokens that the pages of each hold

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Hides the padding, too. [group, 1, 1, length]"""
        return _causal_mask(self.positions, self.length, window, dtype)[:, None, None]

    def attend(self, pool: KvPool, layer: int, scores: _Scores, q: Tensor, mask: Tensor | None) -> Tensor:
        """q: [group, num_heads, head_dim] -> [group, num_heads * head_dim]."""
        keys, values = pool.gather(layer, self.pages)
        size, num_kv_heads, head_dim = q.shape[0], *keys.shape[1:]
        # The query heads that share a KV head stand where a prompt's positions would: nothing is repeated for them.
        attended = scores.attend(
            q.view(size, num_kv_heads, -1, head_dim),
            keys.view(size, -1, num_kv_heads, head_dim).transpose(1, 2),
            values.view(size, -1, num_kv_heads, head_dim).transpose(1, 2),
            mask,
        )
        return attended.flatten(1)


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    """Several tokens of one sequence, and all that came before them."""

    rows: slice
    positions: Tensor  # [chunk]
    pages: Tensor  # [pages up to the chunk's end], int64
    end: int  # tokens of the sequence up to the chunk's end

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """[chunk, end]. None for a chunk that starts its sequence and fits the window: it is plainly causal."""
        if len(self.positions) == self.end and (window is None or window >= self.end):
            return None
        return _causal_mask(self.positions, self.end, window, dtype)

    def attend(self, pool: KvPool, layer: int, scores: _Scores, q: Tensor, mask: Tensor | None) -> Tensor:
        """q: [chunk, num_heads, head_dim] -> [chunk, num_heads * head_dim]."""
        keys, values = pool.gather(layer, self.pages)
        attended = scores.attend(
            q.transpose(0, 1)[None],
            keys[: self.end].transpose(0, 1)[None],
            values[: self.end].transpose(0, 1)[None],
            mask,
        )
        return attended[0].transpose(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class _TorchStep:
    pool: KvPool
    scores: _Scores
    slots: Tensor
    parts: Sequence[_DecodeGroup | _PrefillChunk]  # in the order of their rows
    layer_masks: Sequence[Sequence[Tensor | None]]  # a mask per layer and part

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.write(layer, self.slots, k, v)
        parts = [
            part.attend(self.pool, layer, self.scores, q[part.rows], mask)
            for part, mask in zip(self.parts, self.layer_masks[layer], strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, slots=True)
class _TorchFixedDecodes:
    pool: KvPool
    scores: _Scores
    windows: Sequence[int | None]  # of each layer
    slots: Tensor
    group: _DecodeGroup

    @classmethod
    def of(
        cls, pool: KvPool, scores: _Scores, windows: Sequence[int | None], size: int, pages_per_sequence: int
    ) -> _TorchFixedDecodes:
        positions = torch.zeros(size, dtype=torch.int64, device=pool.device)
        pages = torch.zeros(size * pages_per_sequence, dtype=torch.int64, device=pool.device)
        group = _DecodeGroup(slice(0, size), positions, pages, pages_per_sequence * pool.page_size)
        return cls(pool, scores, windows, torch.zeros_like(positions), group)

    def fill(self, batch: StepBatch) -> None:
        group, longest = self.group, self.group.length // self.pool.page_size
        group.positions.copy_(batch.positions)
        group.pages.copy_(_padded_tables(batch.decodes, longest, batch.uploads))
        self.slots.copy_(batch.slots)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.write(layer, self.slots, k, v)
        mask = self.group.mask(self.windows[layer], self.pool.dtype)
        return self.group.attend(self.pool, layer, self.scores, q, mask)


def _decode_groups(batch: StepBatch, pool: KvPool) -> Iterable[_DecodeGroup]:
    """Groups decodes (shortest first) so that padding at most doubles what is read of long sequences."""
    first = 0
    for _, members in groupby(batch.decodes, key=lambda s: max(s.start // pool.page_size + 1, _SHORT).bit_length()):
        group = list(members)
        rows = slice(first, first + len(group))
        yield _decode_group(group, rows, batch, pool)
        first = rows.stop


def _decode_group(group: Sequence[SequencePlan], rows: slice, batch: StepBatch, pool: KvPool) -> _DecodeGroup:
    longest = max(s.start for s in group) // pool.page_size + 1
    pages = _padded_tables(group, longest, batch.uploads)
    return _DecodeGroup(rows, batch.positions[rows], pages, length=longest * pool.page_size)


def _padded_tables(decodes: Sequence[SequencePlan], longest: int, uploads: Uploads) -> Tensor:
    """Page tables one after another, each cut or padded with page 0 to `longest` pages. [decodes * longest], int64"""
    pages = [[*s.page_table[:longest], *[0] * (longest - len(s.page_table))] for s in decodes]
    return uploads(pages, torch.int64).flatten()


def _prefill_chunks(batch: StepBatch, pool: KvPool) -> Iterable[_PrefillChunk]:
    first = len(batch.decodes)
    for sequence in batch.prefills:
        rows = slice(first, first + len(sequence.token_ids))
        end = sequence.start + len(sequence.token_ids)
        positions = batch.positions[rows]
        pages = sequence.page_table[: (end - 1) // pool.page_size + 1]
        yield _PrefillChunk(
            rows=rows,
            positions=positions,
            pages=batch.uploads(pages, torch.int64),
            end=end,
        )
        first = rows.stop


def _causal_mask(positions: Tensor, length: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 where a query at one of `positions` sees the key at 0 … length - 1, minus infinity where not.

    With a window it sees so many keys, the one at its own position included.
    """
    distances = positions[:, None] - torch.arange(length, device=positions.device)
    hidden = distances < 0
    if window is not None:
        hidden |= distances >= window
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, -torch.inf)

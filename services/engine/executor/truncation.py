"""Draws from the most probable tokens only: top_k and top_p. The reference, by sorting."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from services.engine.executor.draw import inverse_cdf

# Draws one token per row from its `top_k` heaviest tokens, cut to the fewest that hold `top_p` of their weight; of
# equally heavy ones those with the lowest ids. (weights: [rows, vocab_size], float32, not negative, any scale; top_k:
# [rows], int64, at least 1, or None for no limit in any row; top_p: [rows], float64, likewise; uniforms: [rows],
# float64) -> [rows], int64. With weights that are not finite, any token is drawn.
DrawTruncated = Callable[[Tensor, Tensor | None, Tensor | None, Tensor], Tensor]

# On a CPU a whole vocabulary takes 3 ms to sort, its largest 256 entries 0.2 ms to find: rows are first tried among few
# candidates, and only those that are not settled there among more. On a GPU, to ask which are settled is to wait.
_WIDTHS = (256, 4096)


def draw_truncated(weights: Tensor, top_k: Tensor | None, top_p: Tensor | None, uniforms: Tensor) -> Tensor:
    """A `DrawTruncated`. On a CPU tokens are laid out by weight for the draw, elsewhere by id."""
    if weights.device.type != "cpu":
        return inverse_cdf(keep_truncated(weights, top_k, top_p), uniforms)
    limits = _limits(weights, top_k, top_p)
    return _draw_among_few(weights, *limits, uniforms)


def keep_truncated(weights: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """What may be drawn: `weights`, with 0 for what is cut."""
    limits = _limits(weights, top_k, top_p)
    ranked, ids = _rank(weights, weights.shape[-1])
    kept = _truncate(ranked, weights.sum(-1, dtype=torch.float64), *limits, weights.shape[-1])
    is_kept = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, ids, kept > 0.0)
    return weights.masked_fill(~is_kept, 0.0)


def _limits(weights: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> tuple[Tensor, Tensor]:
    """With the numbers that stand for no limit: the size of the vocabulary, and 1."""
    rows, vocab_size = weights.shape
    if top_k is None:
        top_k = torch.full((rows,), vocab_size, dtype=torch.int64, device=weights.device)
    if top_p is None:
        top_p = torch.ones(rows, dtype=torch.float64, device=weights.device)
    return top_k, top_p


def _draw_among_few(weights: Tensor, top_k: Tensor, top_p: Tensor, uniforms: Tensor) -> Tensor:
    vocab_size = weights.shape[-1]
    tokens = torch.empty_like(top_k)
    pending = torch.arange(len(weights), device=weights.device)
    for width in (*(width for width in _WIDTHS if width < vocab_size), vocab_size):
        candidates = weights[pending]
        ranked, ids = _rank(candidates, width)
        total = candidates.sum(-1, dtype=torch.float64)
        kept = _truncate(ranked, total, top_k[pending], top_p[pending], vocab_size)
        settled = _settled(ranked, kept, top_k[pending], vocab_size)
        rows = pending[settled]
        drawn = inverse_cdf(kept[settled], uniforms[rows])
        tokens[rows] = ids[settled].gather(1, drawn[:, None])[:, 0]
        pending = pending[~settled]
        if not len(pending):
            break
    return tokens


def _rank(weights: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` heaviest tokens, heaviest first, of equal ones the lowest id first: weights (float64) and ids."""
    if width < weights.shape[-1]:
        ids = weights.topk(width, sorted=False).indices.sort().values
        ranked, order = weights.gather(1, ids).sort(descending=True, stable=True)
        return ranked.double(), ids.gather(1, order)
    ranked, ids = weights.sort(descending=True, stable=True)
    return ranked.double(), ids


def _truncate(ranked: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor, vocab_size: int) -> Tensor:
    """`ranked` with 0 for what is cut. total: [rows], the weight of the whole vocabulary."""
    ranks = torch.arange(ranked.shape[-1], device=ranked.device)
    among_k = ranked.masked_fill(ranks >= top_k[:, None], 0.0)
    cumulative = among_k.cumsum(-1)
    mass = torch.where(top_k < vocab_size, cumulative[:, -1], total)
    before = cumulative - among_k
    return among_k.masked_fill(before >= (top_p * mass)[:, None], 0.0)


def _settled(ranked: Tensor, kept: Tensor, top_k: Tensor, vocab_size: int) -> Tensor:
    """Rows for which tokens that are no candidates make no difference. [rows], bool."""
    if ranked.shape[-1] == vocab_size:
        return torch.ones_like(top_k, dtype=torch.bool)
    lightest_kept = kept.masked_fill(kept == 0.0, torch.inf).amin(-1)
    all_k_seen = (top_k <= ranked.shape[-1]) | (top_k >= vocab_size)
    return (lightest_kept > ranked[:, -1]) & all_k_seen

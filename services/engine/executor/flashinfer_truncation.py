"""top_k and top_p by flashinfer's kernels, which find the lightest weight that is kept without sorting.

The kernels keep all tokens of that weight, and their random numbers would come from a row's place in the batch; so
which of the equal ones are kept, and the draw, are our own. Of what the kernels return only the zeros are used: the
rest is divided by sums that depend on the order in which they are made.

flashinfer is handed in, as for attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from services.engine.executor.draw import inverse_cdf


class FlashInferFilters(Protocol):
    """What is used of the package `flashinfer`, with its own names. probs: [rows, vocab_size], float32."""

    def top_k_renorm_probs(self, probs: Tensor, top_k: Tensor) -> Tensor: ...

    def top_p_renorm_probs(self, probs: Tensor, top_p: Tensor, is_deterministic: bool) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class FlashInferTruncation:
    """`draw` is a `DrawTruncated`; it waits for nothing."""

    kernels: FlashInferFilters

    def draw(self, weights: Tensor, top_k: Tensor | None, top_p: Tensor | None, uniforms: Tensor) -> Tensor:
        """Tokens are laid out by id."""
        return inverse_cdf(self.kept(weights, top_k, top_p), uniforms)

    def kept(self, weights: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
        """What may be drawn: `weights`, with 0 for what is cut."""
        kept = weights.nan_to_num(nan=1.0)  # a search for a threshold among others than numbers might not end
        if top_k is not None:
            kept = self._heaviest(kept, top_k)
        return kept if top_p is None else self._nucleus(kept, top_p)

    def _heaviest(self, weights: Tensor, top_k: Tensor) -> Tensor:
        kept = _where_not_zero(weights, self.kernels.top_k_renorm_probs(weights, top_k.int()))
        lightest = _lightest(kept)
        num_heavier = (kept > lightest).sum(-1)
        return _without_surplus(kept, lightest, top_k - num_heavier)

    def _nucleus(self, weights: Tensor, top_p: Tensor) -> Tensor:
        mass = weights.sum(-1, dtype=torch.float64)
        probs = (weights / mass[:, None]).float()
        filtered = self.kernels.top_p_renorm_probs(probs, top_p.float(), is_deterministic=True)
        kept = _where_not_zero(weights, filtered)
        lightest = _lightest(kept)
        heavier = kept.where(kept > lightest, 0.0).sum(-1, dtype=torch.float64)
        missing = ((top_p * mass - heavier) / lightest[:, 0]).ceil()
        kept = _without_surplus(kept, lightest, missing)
        return torch.where(top_p[:, None] < 1.0, kept, weights)


def _where_not_zero(weights: Tensor, filtered: Tensor) -> Tensor:
    return weights.where(filtered > 0.0, 0.0)


def _lightest(kept: Tensor) -> Tensor:
    """The lowest weight of each row that is not 0. [rows, 1]"""
    return kept.where(kept > 0.0, torch.inf).amin(-1, keepdim=True)


def _without_surplus(kept: Tensor, lightest: Tensor, count: Tensor) -> Tensor:
    """Cuts all of the lightest but the first `count` ([rows])."""
    ties = kept == lightest
    return kept.masked_fill(ties & (ties.cumsum(-1, dtype=torch.int32) > count[:, None]), 0.0)

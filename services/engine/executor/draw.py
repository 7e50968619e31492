"""The draw of an index by its weight from a given random number."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draws one index per row. weights: [rows, n], not negative, not all 0, any scale; uniforms: [rows], float64.

    Returns [rows], int64. An index of weight 0 is never drawn; with weights that are not finite, any index is.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # Below the total even where the product is rounded up to it, or the index would lie past the end.
    target = torch.minimum(uniforms * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return drawn.clamp_(max=weights.shape[-1] - 1)

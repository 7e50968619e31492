"""RMSNorm (arXiv 1910.07467)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """weight: [size of the last dimension]; offset: added to it."""

    weight: Tensor
    eps: float
    offset: float

    def __call__(self, x: Tensor) -> Tensor:
        if not self.offset:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # In float32: the sum of a small weight and 1 would lose it.
        weight = self.weight.float() + self.offset
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)

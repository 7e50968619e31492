"""The inverse-CDF draw."""

from __future__ import annotations

import torch

from services.engine.executor.draw import inverse_cdf


def test_inverse_cdf_never_draws_weight_zero() -> None:
    weights = torch.tensor([[0.0, 2.0, 0.0, 1.0, 1.0, 0.0]]).expand(5, -1)
    uniforms = torch.tensor([0.0, 0.49999, 0.5, 0.75, 1.0], dtype=torch.float64)
    assert inverse_cdf(weights, uniforms).tolist() == [1, 1, 3, 4, 4]

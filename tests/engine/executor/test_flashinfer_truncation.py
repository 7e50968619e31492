"""flashinfer's way of truncating keeps what the reference keeps, ties included; its kernels keep all of equal ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.engine.executor.flashinfer_truncation import FlashInferTruncation
from services.engine.executor.truncation import draw_truncated, keep_truncated
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu

FLASHINFER = FlashInferTruncation(FlashInferOnCpu())

# Eighths add up without rounding; few values make many ties, and zeros are what a grammar or min_p has cut.
_rows = st.lists(st.integers(0, 12).map(lambda n: n / 8), min_size=11, max_size=11).filter(any)
_limits = st.tuples(st.integers(1, 11), st.sampled_from([0.125, 0.25, 0.5, 0.875, 1.0]))


@settings(deadline=None)
@given(st.lists(st.tuples(_rows, _limits), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_what_is_kept_is_what_the_reference_keeps(
    rows: list[tuple[list[float], tuple[int, float]]], with_top_k: bool, with_top_p: bool
) -> None:
    weights = torch.tensor([weights for weights, _ in rows])
    top_k = torch.tensor([top_k for _, (top_k, _) in rows]) if with_top_k else None
    top_p = torch.tensor([top_p for _, (_, top_p) in rows], dtype=torch.float64) if with_top_p else None
    expected = keep_truncated(weights, top_k, top_p)
    assert torch.equal(FLASHINFER.kept(weights, top_k, top_p), expected)
    assert (expected > 0).any(-1).all()


@pytest.mark.parametrize("shape", ["flat", "ties", "peaked", "random"])
def test_of_a_large_vocabulary(shape: str) -> None:
    """Powers of 2, whose sums are exact; and random numbers, which at most differ where the mass is just reached."""
    noise = torch.randn(6, 6000, generator=torch.Generator().manual_seed(3))
    weights = {
        "flat": torch.ones_like(noise),
        "ties": noise.mul(2).round().exp2(),
        "peaked": noise.mul(8).round().exp2(),
        "random": noise.exp(),
    }[shape]
    top_k = torch.tensor([6000, 1, 50, 5000, 6000, 300])
    top_p = torch.tensor([0.5, 1.0, 1.0, 0.75, 0.0625, 0.9375], dtype=torch.float64)
    differ = (FLASHINFER.kept(weights, top_k, top_p) != keep_truncated(weights, top_k, top_p)).sum(-1)
    assert differ.max() <= (shape == "random")


def _drawn(draw: object, weights: Tensor, top_k: Tensor | None, top_p: Tensor | None, num: int) -> Tensor:
    """How often each token is drawn by evenly spaced numbers. [vocab_size]"""
    uniforms = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    tokens = draw(weights.expand(num, -1).contiguous(), *_expanded(num, top_k, top_p), uniforms)  # type: ignore[operator]
    return torch.bincount(tokens, minlength=weights.shape[-1])


def _expanded(num: int, *limits: Tensor | None) -> list[Tensor | None]:
    return [None if limit is None else limit.expand(num).contiguous() for limit in limits]


def test_both_orders_draw_each_token_as_often() -> None:
    """The reference lays tokens out by weight on a CPU, flashinfer's way by id: which number draws which differs."""
    weights = torch.tensor([[3.0, 1.0, 4.0, 1.0, 0.0, 4.0, 2.0, 1.0]])
    for top_k, top_p in ((5, None), (None, 0.75), (6, 0.875)):
        limits = (
            None if top_k is None else torch.tensor([top_k]),
            None if top_p is None else torch.tensor([top_p], dtype=torch.float64),
        )
        ours, theirs = (_drawn(draw, weights, *limits, num=2000) for draw in (draw_truncated, FLASHINFER.draw))
        assert (ours - theirs).abs().max() <= 1
        assert ours[4] == 0


def test_what_is_no_number_does_not_reach_the_kernels() -> None:
    weights = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 5.0, 2.0]])
    drawn = FLASHINFER.draw(
        weights,
        torch.tensor([2, 1]),
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([0.3, 0.3], dtype=torch.float64),
    )
    assert drawn[1] == 1

"""top_k and top_p against a plain implementation, over vocabularies on all sides of the candidate widths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.executor.truncation import draw_truncated


def _plain(weights: list[float], top_k: int, top_p: float, u: float) -> int:
    """Sort, cut, draw: in Python's own floats."""
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))[:top_k]
    mass = sum(weights[i] for i in order)
    kept: list[int] = []
    reached = 0.0
    for i in order:
        if reached >= top_p * mass:
            break
        kept.append(i)
        reached += weights[i]
    target, cumulative = u * reached, 0.0
    for i in kept:
        cumulative += weights[i]
        if cumulative > target:
            return i
    return max(i for i in kept if weights[i] > 0.0)


# Eighths add up without rounding, so that both implementations see the same sums; few values make many ties.
_eighths = st.integers(0, 40).map(lambda n: n / 8)
_filters = st.tuples(
    st.integers(1, 40), st.sampled_from([0.125, 0.25, 0.5, 0.875, 1.0]), st.floats(0, 1, exclude_max=True)
)


@settings(deadline=None)
@given(st.lists(_eighths, min_size=1, max_size=40).filter(any), _filters)
def test_equals_the_plain_implementation(weights: list[float], filters: tuple[int, float, float]) -> None:
    top_k, top_p, u = filters
    drawn = _draw(torch.tensor([weights]), [min(top_k, len(weights))], [top_p], [u])
    assert drawn == [_plain(weights, top_k, top_p, u)]


def _draw(weights: torch.Tensor, top_k: list[int], top_p: list[float], u: list[float]) -> list[int]:
    tokens = draw_truncated(
        weights,
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(u, dtype=torch.float64),
    )
    return [int(token) for token in tokens]


@pytest.mark.parametrize("vocab_size", [255, 256, 257, 4097, 6000])
@pytest.mark.parametrize("shape", ["flat", "ties", "peaked"])
def test_large_vocabularies_equal_the_plain_implementation(vocab_size: int, shape: str) -> None:
    """Rows that few candidates settle and rows that need the whole vocabulary, in one call."""
    generator = torch.Generator().manual_seed(vocab_size)
    noise = torch.randn(8, vocab_size, generator=generator)
    weights = {
        "flat": torch.ones_like(noise),
        "ties": noise.mul(2).round().exp2(),
        "peaked": noise.mul(8).round().exp2(),
    }[shape]
    top_k = [vocab_size, 1, 50, 256, 300, vocab_size, vocab_size, min(5000, vocab_size)]
    top_p = [0.5, 1.0, 1.0, 1.0, 0.75, 0.9375, 0.0625, 0.5]
    u = torch.rand(8, generator=generator).tolist()
    expected = [_plain(weights[i].tolist(), top_k[i], top_p[i], u[i]) for i in range(8)]
    assert _draw(weights, top_k, top_p, u) == expected

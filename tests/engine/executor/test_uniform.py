"""Uniform numbers from a seed and an index."""

from __future__ import annotations

import math

import pytest
import torch

from services.engine.executor.uniform import uniform


@pytest.mark.parametrize("vary", ["index", "seed", "high seed bits"])
def test_uniform_numbers_fill_the_unit_interval_evenly(vary: str) -> None:
    count = 20000
    match vary:
        case "index":
            values = [uniform(42, i) for i in range(count)]
        case "seed":
            values = [uniform(i, 0) for i in range(count)]
        case _:
            values = [uniform(i << 44, 3) for i in range(count)]
    assert all(0.0 <= value < 1.0 for value in values)
    bins = torch.histc(torch.tensor(values), bins=50, min=0.0, max=1.0)
    chi_square = float(((bins - count / 50) ** 2 / (count / 50)).sum())
    assert chi_square < 49 + 4 * math.sqrt(2 * 49)
    pairs = torch.tensor(values).double()
    assert abs(float(torch.corrcoef(torch.stack((pairs[:-1], pairs[1:])))[0, 1])) < 4 / math.sqrt(count)


def test_seed_and_index_are_not_interchangeable() -> None:
    values = {uniform(seed, index) for seed in range(50) for index in range(50)}
    assert len(values) == 2500
    assert uniform(2**64 - 1, 10**6) == uniform(2**64 - 1, 10**6)

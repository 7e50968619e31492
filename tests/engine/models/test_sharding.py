"""How a model's heads, inner elements and token ids are divided among ranks."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.models.config import ModelConfig
from services.engine.models.errors import UnsupportedModelError
from services.engine.models.sharding import Shard
from tests.engine.models.reference import hf_config


def config(heads: int, kv_heads: int) -> ModelConfig:
    return ModelConfig.from_hf(hf_config(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=64))


def shards(model: ModelConfig, size: int) -> list[Shard]:
    return [Shard.of(model, rank, size) for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads"),
    [
        (1, [9], [[0, 1, 2]]),
        (2, [3, 6], [[0], [1, 2]]),
        (3, [3, 3, 3], [[0], [1], [2]]),
        (4, [3, 3, 1, 2], [[0], [1], [2], [2]]),
        (9, [1] * 9, [[0]] * 3 + [[1]] * 3 + [[2]] * 3),
    ],
)
def test_nine_heads_with_three_kv_heads(size: int, heads: list[int], kv_heads: list[list[int]]) -> None:
    """The default model's."""
    parts = shards(config(9, 3), size)
    assert [len(part.heads) for part in parts] == heads
    assert [list(part.kv_heads) for part in parts] == kv_heads


@given(kv_heads=st.integers(1, 8), group=st.integers(1, 8), size=st.integers(1, 64))
def test_every_head_has_one_rank_and_finds_its_kv_head_there(kv_heads: int, group: int, size: int) -> None:
    model = config(kv_heads * group, kv_heads)
    if size > model.num_heads:
        with pytest.raises(UnsupportedModelError, match="tensor-parallel-size"):
            Shard.of(model, 0, size)
        return
    parts = shards(model, size)
    assert list(chain.from_iterable(part.heads for part in parts)) == list(range(model.num_heads))
    for part in parts:
        local = part.local_config
        assert local.num_heads % local.num_kv_heads == 0
        local_group = local.num_heads // local.num_kv_heads
        for index, head in enumerate(part.heads):
            assert part.kv_heads[index // local_group] == head // group
    for divided in ("intermediate", "vocab"):
        whole = list(chain.from_iterable(getattr(part, divided) for part in parts))
        assert whole == list(range(len(whole)))

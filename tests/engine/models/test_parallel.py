"""A divided model computes what the whole one does, for every family and where nothing divides evenly."""

from __future__ import annotations

import pytest
import torch

from services.engine.executor.kv_pool import KvPool
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.errors import MissingWeightError, UnexpectedWeightError, WeightShapeError
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_shard
from services.engine.plan import SequencePlan
from services.engine.ranks.group import RankGroup
from tests.engine.executor.plans import Sequence, step_logits
from tests.engine.models.reference import FAMILIES, decoder
from tests.engine.ranks.thread_ranks import together

PROMPT = [(7 * i + 3) % 97 for i in range(33)]


def plan() -> SequencePlan:
    return Sequence(1, PROMPT, [0, 1, 2]).plan()


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_whole_model(family: str, size: int) -> None:
    config = ModelConfig.from_hf(FAMILIES[family])

    def logits(group: RankGroup) -> torch.Tensor | None:
        shard = Shard.of(config, group.rank, size)
        part = load_shard(shard, random_weights(config, 0), torch.float32, "cpu", group)
        pool = KvPool(part.config, 3, 16, part.dtype, part.device)
        return step_logits(part, pool, plan()).get(1) if group.rank == 0 else _follow(part, pool)

    def _follow(part: object, pool: KvPool) -> None:
        with pytest.raises(ValueError, match="shorter"):  # one id, no row of logits
            step_logits(part, pool, plan())  # type: ignore[arg-type]

    whole = decoder(FAMILIES[family])
    expected = step_logits(whole, KvPool(config, 3, 16, whole.dtype, whole.device), plan())[1]
    actual = together(size, logits)[0]
    assert actual is not None
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


class _Alone:
    """For loading only."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    gather = sum


def _load(weights: dict[str, torch.Tensor]) -> None:
    config = ModelConfig.from_hf(FAMILIES["llama"])
    load_shard(Shard.of(config, 1, 2), weights.items(), torch.float32, "cpu", _Alone())


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return dict(random_weights(ModelConfig.from_hf(FAMILIES["llama"]), 0))


NAME = "model.layers.1.mlp.down_proj.weight"


def test_a_missing_tensor_is_named(weights: dict[str, torch.Tensor]) -> None:
    del weights[NAME]
    with pytest.raises(MissingWeightError, match=NAME):
        _load(weights)


def test_a_surplus_tensor_is_named(weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(UnexpectedWeightError, match="surplus"):
        _load(weights | {"surplus": torch.zeros(1)})


def test_a_tensor_of_another_shape_is_named_with_the_whole_shapes(weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(WeightShapeError, match=rf"{NAME} has shape \[48, 81\], the config calls for \[48, 80\]"):
        _load(weights | {NAME: torch.zeros(48, 81)})

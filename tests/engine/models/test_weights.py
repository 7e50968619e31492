"""Loading takes exactly the tensors that the config calls for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.errors import MissingWeightError, UnexpectedWeightError, WeightShapeError
from services.engine.models.weights import load_model, weight_shapes
from tests.engine.models.reference import FAMILIES, Oracle, hf_config

CONFIG = ModelConfig.from_hf(hf_config())


def _weights() -> dict[str, Tensor]:
    return dict(random_weights(CONFIG, seed=3))


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_are_those_of_transformers(family: str) -> None:
    config = FAMILIES[family]
    theirs = {name: tuple(tensor.shape) for name, tensor in Oracle.of(config).model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del theirs["lm_head.weight"]
    assert weight_shapes(ModelConfig.from_hf(config)) == theirs


def test_any_order_and_dtype_loads_into_the_wanted_dtype() -> None:
    weights = reversed([(name, tensor.bfloat16()) for name, tensor in _weights().items()])
    model = load_model(CONFIG, weights, torch.float32, "cpu")
    assert model.dtype == torch.float32
    up = _weights()["model.layers.2.mlp.up_proj.weight"].bfloat16().float()
    assert torch.equal(model.layers[2].mlp.gate_up.weight[80:], up)


def test_tied_embeddings_share_memory_and_a_stored_head_is_passed_over() -> None:
    config = ModelConfig.from_hf(hf_config(tie_word_embeddings=True))
    weights = [*random_weights(config, 0), ("lm_head.weight", torch.zeros(97, 48))]
    model = load_model(config, weights, torch.float32, "cpu")
    assert model.lm_head.weight is model.embeddings
    assert model.embeddings.any()


def test_old_checkpoints_store_rope_frequencies_which_are_passed_over() -> None:
    weights = _weights() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(6)}
    load_model(CONFIG, weights.items(), torch.float32, "cpu")


def test_missing_tensors_are_named() -> None:
    weights = _weights()
    del weights["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(
        MissingWeightError, match=r"missing tensor model\.layers\.1\.self_attn\.k_proj\.weight"
    ) as error:
        load_model(CONFIG, weights.items(), torch.float32, "cpu")
    assert error.value.names == ("model.layers.1.self_attn.k_proj.weight",)


def test_many_missing_tensors_are_counted() -> None:
    with pytest.raises(MissingWeightError, match=r"embed_tokens.* and 27 more") as error:
        load_model(CONFIG, [], torch.float32, "cpu")
    assert len(error.value.names) == len(weight_shapes(CONFIG)) == 30


def test_a_surplus_tensor_is_named() -> None:
    weights = _weights() | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(48)}
    with pytest.raises(UnexpectedWeightError, match=r"model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_model(CONFIG, weights.items(), torch.float32, "cpu")


def test_a_tensor_that_comes_twice_is_named() -> None:
    weights = [*_weights().items(), ("model.norm.weight", torch.ones(48))]
    with pytest.raises(UnexpectedWeightError, match=r"model\.norm\.weight"):
        load_model(CONFIG, weights, torch.float32, "cpu")


def test_a_tensor_of_another_shape_is_named_with_both_shapes() -> None:
    weights = _weights() | {"model.norm.weight": torch.ones(49)}
    with pytest.raises(WeightShapeError, match=r"model\.norm\.weight has shape \[49\], the config calls for \[48\]"):
        load_model(CONFIG, weights.items(), torch.float32, "cpu")


def test_random_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (dict(random_weights(CONFIG, seed)) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)

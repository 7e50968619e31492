"""Weights as integers: every format on every instruction set against numpy, GGUF blocks, whole models, bad input."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import postroad_native
import pytest

from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from tests.engine.models.reference import FAMILIES
from tests.engine.native.quantizing import (
    BLOCKS,
    FORMATS,
    Floats,
    HeadModel,
    blocks_of,
    dequantized,
    rounded_weights,
    widened_nibbles,
)
from tests.engine.native.stepping import model_fields, native_model, plan, prompt, step

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]
ISAS = postroad_native.supported_isas()
# Hidden sizes: whole groups, an odd number of them, a short last one; more than AMX multiplies with all rows at once.
# Vocabularies that do not fill their last panel.
SHAPES = [(128, 64), (96, 75), (80, 33), (1312, 40)]


def _all_logits(model: postroad_native.Model, token_ids: list[int]) -> Floats:
    return step(model, plan(token_ids, range(20)), logit_rows=range(len(token_ids)))


def _error(actual: Floats, expected: Floats) -> float:
    """Root of the mean square, relative to the expected numbers'."""
    return float(np.sqrt(np.square(actual - expected).mean() / np.square(expected).mean()))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("quantization", FORMATS)
def test_a_linear_layer_equals_numpy_over_the_same_integers(
    quantization: str, shape: tuple[int, int], isa: str
) -> None:
    """40 rows: whole tiles of AMX and rows left over."""
    head = HeadModel(*shape)
    token_ids = [i % shape[1] for i in range(40)]
    expected = head.expected(token_ids, rounded_weights(head.head, quantization), quantization)
    logits = _all_logits(head.native(quantization, isa), token_ids)
    np.testing.assert_allclose(logits, expected, atol=2e-3 * np.abs(expected).max())
    assert _error(logits, expected) < 1e-3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_gguf_blocks_are_computed_with_as_they_are(blocks: str, isa: str) -> None:
    """Equal, to rounding, to the dequantized weights over the same rounded activations: nothing is quantized twice."""
    head = HeadModel(128, 50)
    token_ids = list(range(20))
    weights = dequantized(blocks_of(head.head, blocks), blocks)
    quantization = "int8_group32" if blocks == "q8_0" else "int4_group32"
    logits = _all_logits(head.native(quantization, isa, blocks), token_ids)
    assert _error(logits, head.expected(token_ids, weights, quantization)) < 1e-3


@pytest.mark.parametrize("blocks", BLOCKS)
def test_gguf_blocks_are_dequantized_where_nothing_is_to_be_quantized(blocks: str) -> None:
    head = HeadModel(128, 50)
    from_blocks = _all_logits(head.native("none", blocks=blocks), [1, 2, 3])
    head.head = dequantized(blocks_of(head.head, blocks), blocks)
    np.testing.assert_array_equal(from_blocks, _all_logits(head.native("none"), [1, 2, 3]))


@pytest.mark.parametrize("quantization", FORMATS)
def test_tiles_and_vectors_give_the_same_bits(quantization: str) -> None:
    """Every number of rows from one to some tiles of AMX, against each row alone."""
    head = HeadModel(96, 75)
    token_ids = list(range(37))
    for isa in {"amx", "avx512_bf16", "portable"} & set(ISAS):
        model = head.native(quantization, isa)
        alone = np.concatenate([_all_logits(model, [token_id]) for token_id in token_ids])
        for count in (1, 5, 6, 7, 13, 15, 16, 17, 32, 37):
            np.testing.assert_array_equal(_all_logits(model, token_ids[:count]), alone[:count])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(96, 75), (80, 33), (1312, 40)], ids=str)
def test_nibbles_are_computed_with_as_the_bytes_that_they_stand_for(shape: tuple[int, int], isa: str) -> None:
    """The same bits as int8 has, of numbers that both formats hold exactly. The longest rows are more than AMX makes
    bytes of at once.
    """
    head = HeadModel(*shape)
    head.head = widened_nibbles(*reversed(shape)) * np.float32(2.0**-6)
    int4, int8 = (head.native(quantization, isa) for quantization in ("int4", "int8"))
    for count in (1, 3, 4, 7, 16, 31, 32, 33, 300):
        token_ids = [i % shape[1] for i in range(count)]
        np.testing.assert_array_equal(_all_logits(int4, token_ids), _all_logits(int8, token_ids))


@pytest.mark.parametrize(
    ("quantization", "bound"),
    [("int8", 0.02), ("int8_group32", 0.015), ("int4", 0.09), ("int4_group32", 0.09)],
)
def test_a_layer_of_random_weights_stays_close_to_float32(quantization: str, bound: float) -> None:
    head = HeadModel(256, 128)
    token_ids = list(range(128))
    exact = _all_logits(head.native("none"), token_ids)
    assert 0 < _error(_all_logits(head.native(quantization), token_ids), exact) < bound


@pytest.mark.parametrize(
    ("quantization", "bound"), [("int8", 0.06), ("int8_group32", 0.06), ("int4", 0.5), ("int4_group32", 0.5)]
)
@pytest.mark.parametrize("family", ["llama, 9 heads, 3 KV heads", "qwen2", "qwen3"])
def test_logits_of_random_models_stay_close_to_float32(family: str, quantization: str, bound: float) -> None:
    """Random weights enlarge errors from layer to layer, as those of trained models do not."""
    token_ids = prompt(1, 60)
    exact = _all_logits(native_model(FAMILIES[family]), token_ids)
    rounded = _all_logits(native_model(FAMILIES[family], quantization=quantization), token_ids)
    assert 0 < _error(rounded, exact) < bound


@pytest.mark.parametrize("quantization", FORMATS)
def test_isas_agree_about_a_whole_model(quantization: str) -> None:
    """To what a single bit of an activation changes where two sums round differently."""
    token_ids = prompt(2, 40)
    logits = [_all_logits(native_model(LLAMA, quantization=quantization, isa=isa), token_ids) for isa in ISAS]
    for one, other in pairwise(logits):
        assert _error(one, other) < 0.03


def test_a_tied_head_is_the_table_of_embeddings_too() -> None:
    config = LLAMA | {"tie_word_embeddings": True}
    token_ids = prompt(3, 30)
    exact = _all_logits(native_model(config), token_ids)
    for quantization, bound in (("int8", 0.06), ("int8_group32", 0.06), ("int4", 0.5), ("int4_group32", 0.5)):
        assert 0 < _error(_all_logits(native_model(config, quantization=quantization), token_ids), exact) < bound


def test_matrices_that_are_computed_together_are_integers_together() -> None:
    fields = model_fields(ModelConfig.from_hf(LLAMA | {"num_hidden_layers": 1}))
    attention = "model.layers.0.self_attn"
    same = {f"{attention}.{part}_proj.weight": "int4" for part in "qkv"}
    options: dict[str, Any] = {"num_pages": 4, "page_size": 16, "threads": 1}
    assert postroad_native.Model(fields, **options, tensor_quantization=same).num_linears == {"none": 4, "int4": 1}
    mixed = same | {f"{attention}.v_proj.weight": "int8"}
    assert postroad_native.Model(fields, **options, tensor_quantization=mixed).num_linears == {"none": 5}
    everything = postroad_native.Model(fields, **options, quantization="int8", tensor_quantization=same)
    assert everything.num_linears == {"int8": 4, "int4": 1}


def test_memory_of_integers() -> None:
    config = ModelConfig.from_hf(LLAMA | {"hidden_size": 288, "intermediate_size": 512})
    models = {
        quantization: postroad_native.Model(
            model_fields(config), num_pages=1, page_size=16, threads=1, quantization=quantization
        ).weight_bytes
        for quantization in ("none", *FORMATS)
    }
    assert models["int8"] < 0.56 * models["none"]
    assert models["int8_group32"] < 0.6 * models["none"]
    assert models["int4"] < 0.35 * models["none"]
    assert models["int4_group32"] < 0.4 * models["none"]


@pytest.mark.parametrize("quantization", FORMATS)
def test_what_is_not_finite_shows(quantization: str) -> None:
    """A weight breaks its own logit; an activation breaks its own row."""
    head = HeadModel(96, 75)
    head.head[7, 40] = np.nan
    head.head[9, 0] = np.inf
    head.embeddings[3, 50] = np.nan
    head.embeddings[4, 95] = np.inf
    for isa in ISAS:
        model = head.native(quantization, isa)
        broken = ~np.isfinite(np.concatenate([_all_logits(model, [token_id]) for token_id in range(10)]))
        assert broken[:, [7, 9]].all()
        assert broken[[3, 4]].all()
        assert broken.sum() == 2 * 75 + 8 * 2


def test_activations_that_are_all_zero_or_tiny() -> None:
    head = HeadModel(96, 75)
    head.norm[32:64] = 0
    head.norm[64:] = 1e-38
    expected = head.expected([5, 6], rounded_weights(head.head, "int8"), "int8")
    for isa in ISAS:
        assert _error(_all_logits(head.native("int8", isa), [5, 6]), expected) < 1e-3


def test_blocks_that_do_not_fit() -> None:
    config = ModelConfig.from_hf(LLAMA)
    name = "model.layers.0.self_attn.q_proj.weight"
    model = postroad_native.Model(model_fields(config), num_pages=4, page_size=16, threads=1)
    weights = dict(random_weights(config, 0))[name].numpy()
    data = blocks_of(np.pad(weights, ((0, 0), (0, -weights.shape[1] % 32))), "q8_0")
    with pytest.raises(ValueError, match="q4_0, q4_1 or q8_0, not q6_k"):
        model.set_weight(name, data, blocks="q6_k")
    with pytest.raises(ValueError, match="multiple of 34 bytes"):
        model.set_weight(name, np.ascontiguousarray(data[:, :-1]), blocks="q8_0")
    with pytest.raises(TypeError, match="uint8"):
        model.set_weight(name, weights, blocks="q8_0")
    with pytest.raises(ValueError, match="shape"):
        model.set_weight(name, np.ascontiguousarray(data[:3]), blocks="q8_0")


def test_an_unknown_quantization_is_refused() -> None:
    fields = model_fields(ModelConfig.from_hf(LLAMA))
    with pytest.raises(ValueError, match="must be one of none, int8, int8_group32, int4, int4_group32, not int3"):
        postroad_native.Model(fields, num_pages=1, page_size=16, threads=1, quantization="int3")
    with pytest.raises(ValueError, match="not int3"):
        postroad_native.Model(fields, num_pages=1, page_size=16, threads=1, tensor_quantization={"x": "int3"})

"""Matrices, and keys and values, in e4m3: how far off they are, what they take, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from services.engine.executor.flashinfer_attention import FlashInferAttention
from services.engine.executor.kv_pool import KvPool
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder, Linear
from services.engine.models.fp8 import E4M3, Fp8Linear, not_multiples, quantized_rows, with_fp8_matrices
from services.engine.models.parallel import RowParallelLinear
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_shard
from services.engine.ranks.group import RankGroup
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.plans import Sequence, step_logits
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.models.reference import FAMILIES, Oracle, decoder
from tests.engine.ranks.thread_ranks import together
from tests.gpu.variants import TORCH, Stepper, Variant

CPU = torch.device("cpu")


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def test_rows_are_off_by_at_most_half_of_the_last_of_three_bits() -> None:
    x = _random(9, 64) * torch.logspace(-6, 6, 9)[:, None]
    values, scales = quantized_rows(x)
    assert values.dtype == E4M3
    assert torch.equal(values.float().abs().amax(-1), torch.full((9,), 448.0))
    normal = x.abs() > scales * 2**-6  # below, steps are equal
    errors = (values.float() * scales - x).abs()
    assert (errors[normal] <= x.abs()[normal] * 2**-4 * 1.0001).all()
    assert (errors <= torch.maximum(x.abs() * 2**-4, scales * 2**-10) * 1.0001).all()


def test_a_row_of_zeros_stays_one_and_what_is_not_finite_is_seen() -> None:
    values, scales = quantized_rows(torch.tensor([[0.0, 0.0], [1.0, torch.nan], [1.0, torch.inf]]))
    assert (values[0].float() * scales[0]).tolist() == [0.0, 0.0]
    assert (values.float() * scales).sum(-1)[1:].isfinite().sum() == 0


@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_close_to_that_of_the_matrix(rows: int, dtype: torch.dtype) -> None:
    linear = Linear(_random(96, 64, seed=1).to(dtype), _random(96, seed=2).to(dtype))
    linear.weight[5] *= 1e3  # an output of its own size does not spoil the others
    x = _random(rows, 64, seed=3).to(dtype)
    x[0, 7] = 50.0  # nor does an outlier the other rows
    product, expected = Fp8Linear.of(linear, CPU)(x), linear(x)
    assert product.dtype == dtype
    others = [i for i in range(96) if i != 5]
    for part in (slice(0, 1), slice(1, None)) if rows > 1 else (slice(0, 1),):
        assert _off(product[part][:, others], expected[part][:, others]) < 0.05
        assert _off(product[part, 5], expected[part, 5]) < 2 * 2**-4  # of one product, both factors may be off


def _logits(model: Decoder, variant: Variant = TORCH) -> Tensor:
    """After a prompt, and after each of three tokens more."""
    stepper = Stepper(model, variant, num_pages=8, page_size=16, largest=1)
    sequence = Sequence(1, [(7 * i) % 97 for i in range(40)], [3, 1, 4, 0])
    rows = []
    for token_id in (5, 9, 2, 6):
        plan = sequence.plan()
        rows.append(stepper.logits([plan])[1])
        sequence.computed += len(plan.token_ids)
        sequence.output.append(token_id)
    return torch.stack(rows)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_logits_stay_close_to_those_in_full_precision(family: str) -> None:
    """transformers in float32 is the measure. e4m3 has four bits less than bfloat16: no more than 16 times as far off.

    With these random weights of few rows that is much; a model that was trained is more robust.
    """
    expected = torch.stack(
        [
            Oracle.of(FAMILIES[family]).logits([(7 * i) % 97 for i in range(40)] + output)[-1]
            for output in ([], [5], [5, 9], [5, 9, 2])
        ]
    )
    model = decoder(FAMILIES[family], dtype=torch.bfloat16)
    quantized = with_fp8_matrices(model, CPU)
    kept_small = replace(TORCH, kv_dtype=E4M3)
    offs = {
        "bfloat16": _off(_logits(model), expected),
        "weights": _off(_logits(quantized), expected),
        "keys and values": _off(_logits(model, kept_small), expected),
        "both": _off(_logits(quantized, kept_small), expected),
    }
    limit = 16 * offs["bfloat16"]
    for what in ("weights", "keys and values", "both"):
        assert offs["bfloat16"] < offs[what] < limit, what


def test_flashinfer_reads_what_the_reference_reads() -> None:
    model = decoder(FAMILIES["qwen3"])
    flashinfer = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64)
    expected = _logits(model, replace(TORCH, kv_dtype=E4M3))
    for make_recorder in (None, RecorderOnCpu):
        assert _off(_logits(model, Variant(flashinfer, make_recorder, kv_dtype=E4M3)), expected) < 0.03


def test_keys_and_values_end_at_what_e4m3_ends_at() -> None:
    config = ModelConfig.from_hf(FAMILIES["llama"])
    pool = KvPool(config, 2, 4, torch.bfloat16, CPU, stored_dtype=E4M3)
    rows = torch.full((1, config.num_kv_heads, config.head_dim), 1e4, dtype=torch.bfloat16)
    pool.write(1, torch.tensor([5]), rows, -rows)
    keys, values = pool.gather(1, torch.tensor([1]))
    assert (keys.dtype, keys[1].unique().tolist(), values[1].unique().tolist()) == (torch.bfloat16, [448.0], [-448.0])
    pool.clear()
    assert not pool.gather(1, torch.tensor([1]))[0].any()


def test_the_layers_matrices_take_half_and_the_rest_is_what_it_was() -> None:
    model = decoder(FAMILIES["llama, tied"], dtype=torch.bfloat16)
    quantized = with_fp8_matrices(model, CPU)
    for layer, plain in zip(quantized.layers, model.layers, strict=True):
        for matrix, original in (
            (layer.attention.qkv, plain.attention.qkv),
            (layer.attention.output, plain.attention.output),
            (layer.mlp.gate_up, plain.mlp.gate_up),
            (layer.mlp.down, plain.mlp.down),
        ):
            assert isinstance(matrix, Fp8Linear)
            assert isinstance(original, Linear)
            assert 2 * matrix.weight.nbytes == original.weight.nbytes
        assert layer.mlp_norm.weight is plain.mlp_norm.weight
    assert isinstance(quantized.lm_head, Linear)
    assert quantized.lm_head.weight is quantized.embeddings
    assert quantized.dtype == torch.bfloat16


def test_sizes_that_the_kernels_do_not_take_are_named() -> None:
    config = ModelConfig.from_hf(FAMILIES["llama"])
    assert not_multiples(config) == ""
    assert not_multiples(replace(config, hidden_size=72, intermediate_size=200)) == (
        "fp8 needs sizes that are multiples of 16, unlike hidden_size 72, intermediate_size 200"
    )


@pytest.mark.parametrize("tied", [True, False])
def test_a_divided_model_is_as_close_as_a_whole_one(tied: bool) -> None:
    """Each rank has scales for what it holds; embeddings and head are divided as they are."""
    family = FAMILIES["qwen3"] | {"intermediate_size": 96, "tie_word_embeddings": tied}
    config, plan = ModelConfig.from_hf(family), Sequence(1, [(7 * i) % 97 for i in range(40)], [0, 1, 2]).plan()

    def logits_of(model: Decoder) -> Tensor:
        return step_logits(model, KvPool(model.config, 3, 16, model.dtype, CPU), plan)[1]

    def logits(group: RankGroup) -> Tensor | None:
        shard = Shard.of(config, group.rank, group.size)
        assert not not_multiples(shard.local_config)
        part = load_shard(shard, random_weights(config, 0), torch.float32, "cpu", group)
        part = with_fp8_matrices(part, CPU)
        for layer in part.layers:
            assert isinstance(layer.mlp.down, RowParallelLinear)
            assert isinstance(layer.mlp.down.part, Fp8Linear)
        if group.rank == 0:
            return logits_of(part)
        with pytest.raises(ValueError, match="shorter"):  # one id, no row of logits
            logits_of(part)
        return None

    found, whole = together(2, logits)[0], decoder(family)
    assert found is not None
    expected = logits_of(whole)
    assert 0 < _off(found, expected) < 1.5 * _off(logits_of(with_fp8_matrices(whole, CPU)), expected)


def test_parts_whose_sizes_do_not_divide_are_named() -> None:
    shard = Shard.of(ModelConfig.from_hf(FAMILIES["llama"]), 1, 2)
    assert "unlike intermediate_size 40, queries 24" in not_multiples(shard.local_config)

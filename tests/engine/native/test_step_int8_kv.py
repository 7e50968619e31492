"""Keys and values in int8: what the reference computes of rounded ones, the same however the work is cut."""

from __future__ import annotations

import random

import numpy as np
import postroad_native
import pytest
import torch
from torch import Tensor

from services.engine.executor.kv_pool import KvPool
from services.engine.models.config import ModelConfig
from services.engine.native_startup import kv_bytes_per_page
from services.engine.plan import SequencePlan
from tests.engine.models.reference import FAMILIES, decoder
from tests.engine.native.oracles import TorchStepper, rounded_decoder
from tests.engine.native.stepping import PAGE_SIZE, Logits, native_model, plan, prompt, step

ISAS = postroad_native.supported_isas()
VARIANTS = [(isa, weight_format) for isa in ISAS for weight_format in ("bf16", "f32")]
LENGTH = 300  # more than one span of 256 keys
PAGES = list(range(20))


class _RoundedPool(KvPool):
    """Keeps what int8 with a scale per token and KV head makes of keys and values."""

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        super().write(layer, slots, _rounded(keys), _rounded(values))


def _rounded(x: Tensor) -> Tensor:
    scales = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scales) * scales


def _rms(difference: Logits) -> float:
    return float(np.sqrt(np.square(difference).mean()))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "family", ["llama, 9 heads, 3 KV heads", "qwen3", "gemma2", "phi3, window, part of a head turned"]
)
def test_logits_are_those_of_rounded_keys_and_values(family: str, isa: str) -> None:
    """But for numbers that lie between two of int8 and fall to the other side."""
    config = FAMILIES[family]
    token_ids = prompt(1, LENGTH)
    model = decoder(config)
    reference = TorchStepper(model, _RoundedPool(model.config, 20, PAGE_SIZE, model.dtype, model.device))
    expected = reference.all_logits(token_ids)
    logits = step(native_model(config, kv_format="int8", isa=isa), plan(token_ids, PAGES), logit_rows=range(LENGTH))
    assert _rms(logits - expected) < 2e-3
    assert np.abs(logits - expected).max() < 0.05


@pytest.mark.parametrize("family", ["llama, 9 heads, 3 KV heads", "qwen3", "gemma3"])
def test_logits_stay_close_to_those_of_exact_ones(family: str) -> None:
    """The logits' own standard deviation is 1; bfloat16 alone is off by 0.01 to 0.02."""
    token_ids = prompt(2, 150)
    exact = TorchStepper.of(rounded_decoder(FAMILIES[family])).all_logits(token_ids)
    model = native_model(FAMILIES[family], weight_format="bf16", kv_format="int8")
    logits = step(model, plan(token_ids, PAGES), logit_rows=range(len(token_ids)))
    assert _rms(logits - exact) < 0.03
    assert np.abs(logits - exact).max() < 0.2


@pytest.mark.parametrize(("isa", "weight_format"), VARIANTS)
@pytest.mark.parametrize("family", ["llama, 9 heads, 3 KV heads", "gemma2"])
def test_chunks_batch_mates_and_pages_do_not_matter(family: str, isa: str, weight_format: str) -> None:
    token_ids = prompt(3, LENGTH)
    model = native_model(FAMILIES[family], kv_format="int8", isa=isa, weight_format=weight_format, threads=2)
    whole = step(model, plan(token_ids, PAGES), logit_rows=range(LENGTH))
    scattered = random.Random(4).sample(range(20, 64), 20)
    start = 0
    for chunk in (1, 15, 17, 200, 7, 30, 1, 29):
        mate = plan(prompt(5 + chunk, 1 + chunk % 3), PAGES[:1])
        rows = step(
            model, mate, plan(token_ids[start : start + chunk], scattered, start), logit_rows=_rows(mate, chunk)
        )
        np.testing.assert_array_equal(rows, whole[start : start + chunk])
        start += chunk
    assert start == LENGTH


def _rows(mate: SequencePlan, chunk: int) -> range:
    first = len(mate.token_ids)
    return range(first, first + chunk)


def test_a_page_holds_nearly_twice_the_tokens_of_bfloat16() -> None:
    config = ModelConfig.from_hf(FAMILIES["llama, 9 heads, 3 KV heads"])
    assert kv_bytes_per_page(config, "bf16", 16, "int8") == 3 * 16 * 3 * (64 + 64 + 8)
    assert kv_bytes_per_page(config, "bf16", 16, "int8") < 0.54 * kv_bytes_per_page(config, "bf16", 16)


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ValueError, match="kv_format must be auto or int8, not int4"):
        native_model(FAMILIES["llama"], kv_format="int4")

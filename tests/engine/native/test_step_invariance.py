"""A row's logits do not depend, bit for bit, on its batch mates, on chunking, on threads, or on where its pages lie."""

from __future__ import annotations

import random
from itertools import islice, pairwise
from typing import Any

import numpy as np
import postroad_native
import pytest
import torch

from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.native_startup import model_fields
from tests.engine.models.reference import FAMILIES
from tests.engine.native.stepping import PAGE_SIZE, Logits, native_model, plan, prompt, step

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]
QWEN3 = FAMILIES["qwen3"]
FORMATS: dict[str, dict[str, Any]] = {  # by name: what a model is made with
    "bf16": {"weight_format": "bf16"},
    "f32": {"weight_format": "f32"},
    "int8": {"weight_format": "bf16", "quantization": "int8"},
    "int8_group32": {"weight_format": "bf16", "quantization": "int8_group32"},
    "int4": {"weight_format": "bf16", "quantization": "int4"},
    "int4_group32": {"weight_format": "bf16", "quantization": "int4_group32"},
}
KV_FORMATS = {
    "bf16, int8 KV": {"weight_format": "bf16", "kv_format": "int8"},
    "f32, int8 KV": {"weight_format": "f32", "kv_format": "int8"},
    "int4, int8 KV": {"weight_format": "bf16", "quantization": "int4", "kv_format": "int8"},
}
SHARING = ("llama, 9 heads, 3 KV heads", "gemma2", "mistral, idle window")  # families that share prefixes below
SHARED_BY = ("bf16", "f32")  # formats likewise
LENGTH = 530  # three spans of 256 keys, the last one short
PAGES = list(range(40))


def _variants(*families: str) -> list[tuple[str, str, str]]:
    """Each with every format and instruction set; quantized ones with the first family alone."""
    return [
        (family, isa, name)
        for family in families
        for isa in postroad_native.supported_isas()
        for name, options in FORMATS.items()
        if family == families[0] or "quantization" not in options
    ]


def _whole(model: postroad_native.Model, token_ids: list[int]) -> Logits:
    return step(model, plan(token_ids, PAGES), logit_rows=range(len(token_ids)))


@pytest.mark.parametrize(("family", "isa", "name"), _variants("llama, 9 heads, 3 KV heads", "qwen3", "gemma2"))
def test_chunked_prefill_equals_whole(family: str, isa: str, name: str) -> None:
    token_ids = prompt(1, LENGTH)
    whole = _whole(native_model(FAMILIES[family], isa=isa, **FORMATS[name]), token_ids)
    model = native_model(FAMILIES[family], isa=isa, **FORMATS[name])
    start = 0
    for chunk in (1, 15, 1, 16, 200, 7, 17, 12, 13, 230, 1, 1, 16):
        rows = step(model, plan(token_ids[start : start + chunk], PAGES, start), logit_rows=range(chunk))
        np.testing.assert_array_equal(rows, whole[start : start + chunk])
        start += chunk
    assert start == LENGTH


@pytest.mark.parametrize(("family", "isa", "name"), _variants("llama, 9 heads, 3 KV heads", "gemma2"))
def test_a_sequence_alone_equals_it_in_batches_of_7_and_32(family: str, isa: str, name: str) -> None:
    """Decodes of one to 300 tokens of context; the last of them with a prefill beside them."""
    lengths = [1 + 9 * i for i in range(31)] + [300]
    prompts = [prompt(10 + i, length) for i, length in enumerate(lengths)]
    first_pages = np.cumsum([0, *(length // 16 + 1 for length in lengths)])
    tables = [list(range(first, end)) for first, end in pairwise(first_pages)]
    model = native_model(FAMILIES[family], isa=isa, **FORMATS[name], num_pages=512)
    for token_ids, table in zip(prompts, tables, strict=True):
        if len(token_ids) > 1:
            step(model, plan(token_ids[:-1], table), logit_rows=[])
    decodes = [plan(ids[-1:], table, len(ids) - 1) for ids, table in zip(prompts, tables, strict=True)]
    alone = np.concatenate([step(model, decode) for decode in decodes])
    for size in (7, 32):
        members = random.Random(size).sample(range(32), size)
        batch = step(model, *(decodes[i] for i in members))
        np.testing.assert_array_equal(batch, alone[members])
    prefill = plan(prompt(99, 100), range(400, 407))
    np.testing.assert_array_equal(step(model, prefill, *decodes)[1:], alone)


@pytest.mark.parametrize(
    ("family", "isa", "name"),
    [
        *((family, isa, name) for family in SHARING for isa in postroad_native.supported_isas() for name in SHARED_BY),
        *((SHARING[0], "auto", name) for name in KV_FORMATS),
    ],
)
def test_sequences_with_a_prefix_in_common_equal_each_alone(family: str, isa: str, name: str) -> None:
    """Keys that several sequences see are read once for many of them: here for those of two prefixes, in any order."""
    model = native_model(FAMILIES[family], isa=isa, threads=2, num_pages=220, **(FORMATS | KV_FORMATS)[name])
    pages = iter(range(220))
    prefixes = [([*islice(pages, length // PAGE_SIZE)], prompt(7, length)) for length in (528, 272)]
    for table, token_ids in prefixes:
        step(model, plan(token_ids, table), logit_rows=[])
    decodes = []
    for i in range(45):  # more than one task takes
        table, token_ids = prefixes[i % 5 == 0]
        own, start, count = [*islice(pages, 3)], len(token_ids), 1 + i % 7
        step(model, plan(prompt(20 + i, count), [*table, *own], start), logit_rows=[])
        decodes.append(plan(prompt(90 + i, 3 if i % 11 == 0 else 1), [*table, *own], start + count))
    alone = [step(model, decode, logit_rows=range(len(decode.token_ids))) for decode in decodes]
    members = random.Random(1).sample(range(45), 45)
    rows = sum(len(decodes[i].token_ids) for i in members)
    batch = step(model, *(decodes[i] for i in members), logit_rows=range(rows))
    np.testing.assert_array_equal(batch, np.concatenate([alone[i] for i in members]))


@pytest.mark.parametrize(("family", "name"), [*(("qwen3", name) for name in FORMATS), ("gemma2", "bf16")])
def test_threads_do_not_matter(family: str, name: str) -> None:
    """Neither where they share out the features of a few rows, nor where each has rows of its own."""
    one, three = (native_model(FAMILIES[family], threads=threads, num_pages=66, **FORMATS[name]) for threads in (1, 3))
    long = plan(prompt(2, LENGTH), PAGES)
    every_row = range(LENGTH)
    np.testing.assert_array_equal(step(three, long, logit_rows=every_row), step(one, long, logit_rows=every_row))
    decode = plan([5], PAGES, LENGTH)
    for _ in range(5):
        np.testing.assert_array_equal(step(three, decode), step(one, decode))
    beside = (decode, plan(prompt(3, 400), range(40, 65)), plan(prompt(4, 2), range(65, 66)))
    np.testing.assert_array_equal(step(three, *beside), step(one, *beside))


def test_scattered_pages_equal_pages_in_order() -> None:
    token_ids = prompt(3, LENGTH)
    expected = _whole(native_model(LLAMA, weight_format="bf16"), token_ids)
    model = native_model(LLAMA, weight_format="bf16")
    pages = random.Random(4).sample(range(64), 40)
    scattered = step(model, plan(token_ids, pages), logit_rows=range(LENGTH))
    np.testing.assert_array_equal(scattered, expected)


@pytest.mark.parametrize("name", [*FORMATS, *KV_FORMATS])
@pytest.mark.parametrize("length", [1, 16, 17, 41, 270])
def test_numbers_that_are_not_finite_in_reused_pages_do_not_matter(length: int, name: str) -> None:
    """A sequence whose keys and values are NaN breaks nobody who gets its pages after it."""
    broken_id = 96
    token_ids = [token_id % broken_id for token_id in prompt(5, length)] + [3, 4, 5]
    models = [_model_with_a_broken_embedding(broken_id, name) for _ in range(2)]
    assert np.isnan(step(models[0], plan([broken_id] * 640, PAGES))).all()
    for model_ids, start in ((token_ids[:length], 0), (token_ids[length:-1], length), (token_ids[-1:], length + 2)):
        reused, fresh = (step(model, plan(model_ids, PAGES, start)) for model in models)
        assert np.isfinite(fresh).all()
        np.testing.assert_array_equal(reused, fresh)


def _model_with_a_broken_embedding(token_id: int, name: str) -> postroad_native.Model:
    config = ModelConfig.from_hf(LLAMA)
    options = (FORMATS | KV_FORMATS)[name]
    model = postroad_native.Model(model_fields(config), num_pages=64, page_size=PAGE_SIZE, threads=1, **options)
    for tensor_name, tensor in random_weights(config, 0):
        if tensor_name == "model.embed_tokens.weight":
            tensor[token_id] = torch.nan
        model.set_weight(tensor_name, tensor.numpy())
    model.finish()
    return model

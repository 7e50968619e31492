"""Logits of native steps are those of transformers and of the torch reference, for every family and instruction set."""

from __future__ import annotations

import numpy as np
import postroad_native
import pytest
import torch

from tests.engine.models.reference import FAMILIES, Oracle, decoder
from tests.engine.native.oracles import TorchStepper, rounded_decoder
from tests.engine.native.stepping import Logits, native_model, plan, prompt, step

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]
QWEN3 = FAMILIES["qwen3"]
ISAS = postroad_native.supported_isas()
LENGTH = 300  # more than one span of 256 keys
PAGES = list(range(20))


def _rms(difference: Logits) -> float:
    return float(np.sqrt(np.square(difference).mean()))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_equal_transformers(family: str, isa: str) -> None:
    token_ids = prompt(1, LENGTH)
    model = native_model(FAMILIES[family], isa=isa)
    assert model.isa == isa
    logits = step(model, plan(token_ids, PAGES), logit_rows=range(LENGTH))
    expected = Oracle.of(FAMILIES[family]).logits(token_ids).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_greedy_tokens_equal_transformers(family: str) -> None:
    token_ids = prompt(0, 37)
    model = native_model(FAMILIES[family], threads=2)
    output: list[int] = []
    computed = 0
    for _ in range(12):
        known = token_ids + output
        logits = step(model, plan(known[computed:], PAGES, computed))
        output.append(int(logits[0].argmax()))
        computed = len(known)
    assert output == Oracle.of(FAMILIES[family]).greedy(token_ids, 12)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", ["llama, 9 heads, 3 KV heads", "llama, biases", "qwen2", "qwen3", "gemma3"])
def test_bf16_logits_are_as_close_as_torchs(family: str, isa: str) -> None:
    """Against float32 arithmetic on the rounded weights: no worse than torch in bf16, and never off by over 0.12.

    The logits' own standard deviation is 1.
    """
    token_ids = prompt(2, 150)
    exact = TorchStepper.of(rounded_decoder(FAMILIES[family])).all_logits(token_ids)
    torchs = TorchStepper.of(decoder(FAMILIES[family], dtype=torch.bfloat16)).all_logits(token_ids)
    model = native_model(FAMILIES[family], weight_format="bf16", isa=isa)
    logits = step(model, plan(token_ids, PAGES), logit_rows=range(len(token_ids)))
    assert _rms(logits - exact) <= _rms(torchs - exact)
    assert np.abs(logits - exact).max() <= 0.12


@pytest.mark.parametrize("isa", ISAS)
def test_mixed_steps_equal_the_reference(isa: str) -> None:
    """Prefill chunks beside decodes, over scattered pages, in any order."""
    model, reference = native_model(QWEN3, isa=isa, threads=2), TorchStepper.of(decoder(QWEN3))
    running, arriving = prompt(3, 290), prompt(4, 70)
    running_pages, arriving_pages = list(range(63, 38, -1)), [5, 31, 7, 2, 36]
    steps = [
        [plan(running[:280], running_pages)],
        [plan(arriving[:33], arriving_pages), plan(running[280:281], running_pages, 280)],
        [plan(running[281:282], running_pages, 281), plan(arriving[33:69], arriving_pages, 33)],
        [plan(arriving[69:], arriving_pages, 69), plan(running[282:290], running_pages, 282)],
    ]
    for plans in steps:
        np.testing.assert_allclose(step(model, *plans), reference.step(*plans), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_page_sizes(page_size: int) -> None:
    token_ids = prompt(5, 200)
    model = native_model(LLAMA, page_size=page_size)
    pages = [40, 3, 17, 22, 9, 8, 50, 1, 33, 12, 60, 61, 62][: -(-200 // page_size)]
    step(model, plan(token_ids[:90], pages))
    logits = step(model, plan(token_ids[90:], pages, 90))
    expected = Oracle.of(LLAMA).logits(token_ids)[-1].numpy()
    np.testing.assert_allclose(logits[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("first", ["writer", "reader"])
def test_a_page_that_another_sequence_fills_in_the_same_step(first: str) -> None:
    shared = prompt(6, 32)
    writer, reader = shared + prompt(7, 5), shared + prompt(8, 3)
    writes, reads = plan(writer, [9, 3, 7]), plan(reader[32:], [9, 3, 8], 32)
    order = (writes, reads) if first == "writer" else (reads, writes)
    logits = dict(zip(map(id, order), step(native_model(LLAMA, threads=2), *order), strict=True))
    oracle = Oracle.of(LLAMA)
    for part, token_ids in ((writes, writer), (reads, reader)):
        expected = oracle.logits(token_ids)[-1].numpy()
        np.testing.assert_allclose(logits[id(part)], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 255, 256, 257, 272, 400])
def test_windows_around_the_limits_of_blocks_and_spans(window: int) -> None:
    """Prefilled in chunks, then decoded: with the window the same as transformers computes of the whole."""
    config = FAMILIES["mistral, window"] | {"sliding_window": window}
    token_ids = prompt(12, 520)
    pages = list(range(40))
    model = native_model(config, threads=2)
    step(model, plan(token_ids[:300], pages), logit_rows=[])
    chunk = step(model, plan(token_ids[300:517], pages, 300), logit_rows=range(217))
    decoded = [step(model, plan([token_ids[i]], pages, i))[0] for i in range(517, 520)]
    expected = Oracle.of(config).logits(token_ids).numpy()
    np.testing.assert_allclose(np.concatenate([chunk, decoded]), expected[300:], atol=1e-4, rtol=1e-4)


def test_more_rows_than_tokens() -> None:
    model = native_model(FAMILIES["gemma2"])
    logits = step(model, plan([5, 6], PAGES), logit_rows=[0, 1] * 500)
    np.testing.assert_array_equal(logits, np.tile(logits[:2], (500, 1)))


def test_logits_of_the_rows_that_are_asked_for() -> None:
    """Any rows, in any order, and none at all, where a step computes keys and values only."""
    token_ids = prompt(9, 40)
    model = native_model(LLAMA)
    everything = step(model, plan(token_ids, PAGES), logit_rows=range(40))
    some = step(model, plan(token_ids, PAGES), logit_rows=[39, 0, 17, 17])
    np.testing.assert_array_equal(some, everything[[39, 0, 17, 17]])

    fresh = native_model(LLAMA)
    assert step(fresh, plan(token_ids[:39], PAGES), logit_rows=[]).shape == (0, 97)
    np.testing.assert_array_equal(step(fresh, plan(token_ids[39:], PAGES, 39))[0], everything[39])


def test_a_step_without_sequences_does_nothing() -> None:
    assert step(native_model(LLAMA)).shape == (0, 97)


def test_logits_outlive_the_model() -> None:
    model = native_model(LLAMA)
    arguments = plan(prompt(10, 5), PAGES)
    copy = step(model, arguments)
    view = _step_view(model, arguments.token_ids)
    del model
    np.testing.assert_array_equal(view, copy)


def _step_view(model: postroad_native.Model, token_ids: list[int]) -> Logits:
    """The model's own buffer, not a copy."""
    length = len(token_ids)
    logits: Logits = model.step(
        token_ids, list(range(length)), [0, length], [length], page_table=[0], page_table_offsets=[0, 1],
        logit_rows=[length - 1],
    )  # fmt: skip
    return logits


@pytest.mark.parametrize("head_dim", [16, 48, 80, 128])
def test_bf16_heads_of_any_size(head_dim: int) -> None:
    """Sizes that fill whole tiles of AMX and halves, and more columns than are summed up side by side."""
    config = QWEN3 | {"head_dim": head_dim}
    token_ids = prompt(5, LENGTH)
    exact = TorchStepper.of(rounded_decoder(config)).all_logits(token_ids)
    for isa in ISAS:
        model = native_model(config, weight_format="bf16", isa=isa)
        logits = step(model, plan(token_ids, PAGES), logit_rows=range(LENGTH))
        assert np.abs(logits - exact).max() <= 0.12, isa

"""The native executor gives the tokens of the torch executor, however the work is cut, laid out and batched."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("postroad_native")

from services.engine.executor.errors import BrokenSequencesError
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.native_executor import FlatStep, NativeExecutor
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.errors import WeightError
from services.engine.native_startup import load_model
from services.engine.plan import SamplingParams, StepPlan
from services.engine.quantization import WeightFormats
from tests.engine.executor.native_executors import PAGE_SIZE, native_executor
from tests.engine.executor.plans import GREEDY, Sequence, decode, step
from tests.engine.models.reference import FAMILIES, decoder

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]
# Drawn, so that the tokens depend on more of the logits than their highest.
DRAWN = SamplingParams(temperature=1.3, seed=5)


@pytest.fixture(scope="module")
def executor() -> NativeExecutor:
    return native_executor(LLAMA)


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(length)]


def _alone(executor: NativeExecutor, sequence: Sequence, num_tokens: int) -> list[int]:
    """The output of the same request by itself, prefilled whole, on the pool's last pages."""
    pages = list(range(executor.info.num_pages - 12, executor.info.num_pages))
    lone = Sequence(99, sequence.prompt, pages, sequence.params)
    decode(executor, lone, num_steps=num_tokens)
    return lone.output


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_steps_give_the_tokens_of_torch_for_every_family(family: str) -> None:
    """Decodes beside prefill chunks, prompts that share a step with others, scattered pages; greedy and drawn."""
    outputs = []
    for executor in (
        native_executor(FAMILIES[family]),
        TorchExecutor(ModelRunner(decoder(FAMILIES[family]), num_pages=64, page_size=PAGE_SIZE)),
    ):
        pages = random.Random(7).sample(range(64), 64)
        greedy = Sequence(1, _prompt(0, 37), pages[:8])
        drawn = Sequence(2, _prompt(1, 5), pages[8:16], DRAWN)
        late = Sequence(3, _prompt(2, 90), pages[16:30], replace(DRAWN, top_p=0.9, top_k=20))
        step(executor, (greedy, 20), (drawn, None))
        step(executor, (drawn, None), (greedy, None))
        step(executor, (late, 33), (greedy, None), (drawn, None))
        step(executor, (greedy, None), (late, 56), (drawn, None))
        decode(executor, drawn, late, greedy, num_steps=6)
        outputs.append((greedy.output, drawn.output, late.output))
    assert outputs[0] == outputs[1]
    assert [len(output) for output in outputs[0]] == [9, 10, 6]


@pytest.mark.parametrize("chunks", [(1, 1, 35), (16, 16, 5), (3, 16, 17, 1), (36, 1)])
def test_a_chunked_prefill_changes_nothing(executor: NativeExecutor, chunks: tuple[int, ...]) -> None:
    sequence = Sequence(1, _prompt(1, 37), list(range(4)), DRAWN)
    for chunk in chunks:
        assert sequence.output == []
        step(executor, (sequence, chunk))
    decode(executor, sequence, num_steps=9)
    assert sequence.output == _alone(executor, sequence, 10)


@pytest.mark.parametrize("count", [7, 32])
def test_a_seeded_sequence_gives_the_same_tokens_alone_and_in_a_batch(count: int) -> None:
    executor = native_executor(LLAMA, num_pages=32 * 4 + 12, threads=2)
    sequences = [
        Sequence(i, _prompt(100 + i, 1 + 3 * i % 50), list(range(4 * i, 4 * i + 4)), SamplingParams(seed=i))
        for i in range(count)
    ]
    decode(executor, *sequences, num_steps=6)
    for sequence in sequences:
        assert sequence.output == _alone(executor, sequence, 6)


@pytest.mark.parametrize("first", ["writer", "reader"])
@pytest.mark.parametrize("own_tokens", [1, 3])
def test_a_page_that_another_sequence_fills_in_the_same_step(
    executor: NativeExecutor, first: str, own_tokens: int
) -> None:
    shared = _prompt(20, 2 * PAGE_SIZE)
    writer = Sequence(1, shared + _prompt(21, 5), [9, 3, 7], DRAWN)
    reader = Sequence(2, shared + _prompt(22, own_tokens), [9, 3, 8], DRAWN, computed=len(shared))
    order = (writer, reader) if first == "writer" else (reader, writer)
    decode(executor, *order, num_steps=4)
    assert writer.output == _alone(executor, writer, 4)
    assert reader.output == _alone(executor, reader, 4)


def test_fieldbug_37_a_prefix_cache_hit_does_not_change_the_text(executor: NativeExecutor) -> None:
    """Cold, then on pages that an earlier sequence left; the last, partial page is always the sequence's own."""
    prompt = _prompt(23, 4 * PAGE_SIZE + 2)
    cold = Sequence(1, prompt, list(range(8)), DRAWN)
    decode(executor, cold, num_steps=5)
    for hit_pages in (1, 2, 4):
        table = [*range(hit_pages), *range(20, 28 - hit_pages)]
        warm = Sequence(2, prompt, table, DRAWN, computed=hit_pages * PAGE_SIZE)
        decode(executor, warm, num_steps=5)
        assert warm.output == cold.output


def test_a_preempted_sequence_goes_on_with_the_same_tokens(executor: NativeExecutor) -> None:
    sequence = Sequence(1, _prompt(30, 10), list(range(4)), DRAWN)
    mate = Sequence(2, _prompt(31, 22), list(range(8, 16)))
    decode(executor, mate, sequence, num_steps=6)
    recomputed = replace(sequence, page_table=list(range(20, 24)), computed=0)
    step(executor, (recomputed, 9), (mate, None))  # prompt and output, in two chunks
    decode(executor, recomputed, num_steps=6)
    assert recomputed.output == _alone(executor, sequence, 12)


@pytest.mark.parametrize("weight_format", ["f32", "bf16"])
def test_broken_logits_fail_the_step_and_leave_no_trace(weight_format: str) -> None:
    broken_token = 0
    config = ModelConfig.from_hf(LLAMA)
    weights = {name: tensor.numpy() for name, tensor in random_weights(config, seed=0)}
    weights["model.embed_tokens.weight"][broken_token] = np.nan
    healthy = native_executor(LLAMA, weight_format=weight_format)
    formats = WeightFormats.plain(weight_format)
    executor = NativeExecutor(load_model(config, weights.items(), healthy.info, 1, formats), healthy.info, 1)
    pages = [0, 1, 2, 3]
    fine = Sequence(1, [1, 2, 3], [4])
    with pytest.raises(BrokenSequencesError, match=r"sequences \[2\]"):
        step(executor, (fine, None), (Sequence(2, [broken_token] * 40, pages), None))
    sequence = Sequence(3, [1 + token % 96 for token in _prompt(40, 21)], pages)
    decode(executor, sequence, num_steps=3)  # ends inside a page that the broken step had filled
    assert sequence.output == _alone(healthy, sequence, 3)
    assert broken_token not in sequence.output


def test_steps_that_sample_nothing(executor: NativeExecutor) -> None:
    assert executor.execute(StepPlan(3, [])).token_ids == {}
    assert executor.execute(StepPlan(4, [Sequence(1, _prompt(41, 6), [0, 1]).plan(5)])).token_ids == {}


@pytest.mark.parametrize("params", [GREEDY, DRAWN, replace(DRAWN, frequency_penalty=1.5, repetition_penalty=1.2)])
def test_tokens_sampled_at_several_rows_of_a_sequence_are_those_sampled_one_by_one(
    executor: NativeExecutor, params: SamplingParams
) -> None:
    sequence = Sequence(1, _prompt(43, 30), [4, 9, 2], params)
    alone = _alone(executor, sequence, 9)
    step(executor, (sequence, None))
    beside = Sequence(2, _prompt(44, 12), [11])
    plans = [sequence.plan_verifying(alone[1:5]), beside.plan(), sequence.plan_verifying([*alone[1:3], 5, 6])]
    right = executor.execute(StepPlan(1, plans[:2]))
    assert right.token_ids == {1: alone[1:6], 2: _alone(executor, beside, 1)}
    wrong = executor.execute(StepPlan(2, plans[2:]))
    assert wrong.token_ids[1][:3] == alone[1:4]
    assert len(wrong.token_ids[1]) == 5
    sequence.output += alone[1:4]
    sequence.computed += 3
    decode(executor, sequence, num_steps=5)  # over the keys and values of guesses that were wrong
    assert sequence.output == alone


def test_a_page_table_that_is_too_short_is_an_error(executor: NativeExecutor) -> None:
    with pytest.raises(IndexError, match="sequence 1 do not hold 17 tokens"):
        step(executor, (Sequence(1, _prompt(42, 17), [0]), None))


def test_what_a_step_looks_like_as_lists() -> None:
    decoding = Sequence(4, [5, 6, 7], [3], computed=2)
    chunk = Sequence(5, list(range(40)), [8, 1, 6], computed=16)
    ending = Sequence(6, [9] * 33, [2, 4, 0], GREEDY, computed=30)
    flat = FlatStep.build([chunk.plan(3), decoding.plan(), ending.plan()], PAGE_SIZE)
    assert flat.token_ids == [16, 17, 18, 7, 9, 9, 9]
    assert flat.positions == [16, 17, 18, 2, 30, 31, 32]
    assert flat.sequence_offsets == [0, 3, 4, 7]
    assert flat.context_lengths == [19, 3, 33]
    assert flat.page_table == [8, 1, 6, 3, 2, 4, 0]
    assert flat.page_table_offsets == [0, 3, 4, 7]
    assert (flat.logit_rows, flat.sampled_ids) == ([3, 6], [4, 6])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"), r"model\.layers\.1\.mlp\.up_proj\.weight"),
        (
            lambda weights: weights.update({"model.layers.9.mlp.up_proj.weight": np.zeros((2, 2), np.float32)}),
            "layers.9",
        ),
        (lambda weights: weights.update({"model.norm.weight": np.zeros(3, np.float32)}), r"model\.norm\.weight"),
    ],
    ids=["missing", "unexpected", "another shape"],
)
def test_weights_that_do_not_fit_the_config_are_named(change, named) -> None:
    config = ModelConfig.from_hf(LLAMA)
    weights = {name: tensor.numpy() for name, tensor in random_weights(config, seed=0)}
    change(weights)
    with pytest.raises(WeightError, match=named):
        load_model(config, weights.items(), native_executor(LLAMA).info, 1, WeightFormats.plain("f32"))

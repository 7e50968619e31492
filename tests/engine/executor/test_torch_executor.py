"""Greedy tokens and logits through step plans equal those of transformers, however the work is cut and laid out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from services.engine.executor.errors import BrokenSequencesError
from services.engine.executor.kv_pool import KvPool, kv_bytes_per_page
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.models.decoder import Decoder
from services.engine.plan import SamplingParams, StepPlan
from tests.engine.executor.plans import GREEDY, Sequence, decode, step, step_logits
from tests.engine.models.reference import FAMILIES, Oracle, decoder

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]
PAGE_SIZE = 4


@pytest.fixture(scope="module")
def model() -> Decoder:
    return decoder(LLAMA)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle.of(LLAMA)


@pytest.fixture
def executor(model: Decoder) -> TorchExecutor:
    return TorchExecutor(ModelRunner(model, num_pages=128, page_size=PAGE_SIZE))


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(length)]


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_equal_transformers_for_every_family(family: str) -> None:
    sequence = Sequence(1, _prompt(0, 37), list(range(16)))
    executor = TorchExecutor(ModelRunner(decoder(FAMILIES[family]), num_pages=16, page_size=PAGE_SIZE))
    decode(executor, sequence, num_steps=12)
    assert sequence.output == Oracle.of(FAMILIES[family]).greedy(sequence.prompt, 12)


@pytest.mark.parametrize("chunks", [(1, 1, 35), (3, 16, 17, 1), (36, 1), (4, 4, 29)])
def test_a_chunked_prefill_samples_once_at_its_end(
    executor: TorchExecutor, oracle: Oracle, chunks: tuple[int, ...]
) -> None:
    sequence = Sequence(1, _prompt(1, 37), list(range(16)))
    for chunk in chunks:
        assert sequence.output == []
        step(executor, (sequence, chunk))
    assert sequence.output == oracle.greedy(sequence.prompt, 1)
    decode(executor, sequence, num_steps=4)
    assert sequence.output == oracle.greedy(sequence.prompt, 5)


@pytest.mark.parametrize("family", ["llama, rope llama3", "qwen2", "qwen3"])
def test_logits_of_mixed_steps_equal_transformers(family: str) -> None:
    """Prefill chunks beside decodes, over scattered pages: the logits themselves, not the tokens alone."""
    model, oracle = decoder(FAMILIES[family]), Oracle.of(FAMILIES[family])
    pool = KvPool(model.config, 40, PAGE_SIZE, torch.float32, model.device)
    pages = random.Random(5).sample(range(40), 40)
    running = Sequence(1, _prompt(2, 19), pages[:10])
    arriving = Sequence(2, _prompt(3, 41), pages[10:30])
    for chunk in (11, 13, 17):  # the running sequence prefills in the first step, then decodes
        plans = (running.plan(), arriving.plan(chunk))
        for sequence_id, logits in step_logits(model, pool, *plans).items():
            sequence = running if sequence_id == 1 else arriving
            expected = oracle.logits(sequence.prompt + sequence.output)[-1]
            torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)
            sequence.output.append(int(expected.argmax()))
        running.computed += len(plans[0].token_ids)
        arriving.computed += chunk
    assert (len(running.output), len(arriving.output)) == (3, 1)


def test_a_prompt_that_arrives_between_decodes(executor: TorchExecutor, oracle: Oracle) -> None:
    running = Sequence(1, _prompt(4, 9), list(range(8)))
    arriving = Sequence(2, _prompt(5, 30), list(range(8, 20)))
    decode(executor, running, num_steps=3)
    step(executor, (arriving, 13), (running, None))  # the plan's order is not the batch's
    step(executor, (running, None), (arriving, 16))
    step(executor, (arriving, 1), (running, None))  # a last chunk of one token
    decode(executor, running, arriving, num_steps=3)
    assert running.output == oracle.greedy(running.prompt, 9)
    assert arriving.output == oracle.greedy(arriving.prompt, 4)


def test_tokens_sampled_at_several_rows_of_a_sequence_are_those_sampled_one_by_one(
    executor: TorchExecutor, oracle: Oracle
) -> None:
    sequence = Sequence(1, _prompt(6, 21), list(range(8)))
    expected = oracle.greedy(sequence.prompt, 9)
    step(executor, (sequence, None))
    beside = Sequence(2, _prompt(7, 9), list(range(8, 12)))
    result = executor.execute(StepPlan(1, [beside.plan(), sequence.plan_verifying(expected[1:5])]))
    assert result.token_ids == {1: expected[1:6], 2: oracle.greedy(beside.prompt, 1)}
    wrong = executor.execute(StepPlan(2, [sequence.plan_verifying([*expected[1:3], 5, 6])]))
    assert wrong.token_ids[1][:3] == expected[1:4]
    sequence.output += expected[1:4]
    sequence.computed += 3
    decode(executor, sequence, num_steps=5)  # over the keys and values of guesses that were wrong
    assert sequence.output == expected


def test_decodes_of_very_different_lengths(executor: TorchExecutor, oracle: Oracle) -> None:
    """Lengths on both sides of every limit by which decodes are grouped: of a page, of 16 pages, of 32."""
    lengths = [1, 3, 4, 5, 59, 63, 64, 70, 140]
    first_page = 0
    sequences = []
    for index, length in enumerate(lengths):
        num_pages = (length + 6) // PAGE_SIZE + 1
        table = list(range(first_page, first_page + num_pages))
        sequences.append(Sequence(index, _prompt(10 + index, length), table))
        first_page += num_pages
    step(executor, *((sequence, None) for sequence in sequences))
    random.Random(0).shuffle(sequences)
    decode(executor, *sequences, num_steps=5)
    for sequence in sequences:
        assert sequence.output == oracle.greedy(sequence.prompt, 6), f"prompt of {len(sequence.prompt)} tokens"


@pytest.mark.parametrize("first", ["writer", "reader"])
@pytest.mark.parametrize("own_tokens", [1, 3])
def test_a_page_that_another_sequence_fills_in_the_same_step(
    executor: TorchExecutor, oracle: Oracle, first: str, own_tokens: int
) -> None:
    shared = _prompt(20, 2 * PAGE_SIZE)
    writer = Sequence(1, shared + _prompt(21, 5), [9, 3, 7, 1, 30])
    reader = Sequence(2, shared + _prompt(22, own_tokens), [9, 3, 8, 2, 31], computed=len(shared))
    order = (writer, reader) if first == "writer" else (reader, writer)
    decode(executor, *order, num_steps=4)
    assert writer.output == oracle.greedy(writer.prompt, 4)
    assert reader.output == oracle.greedy(reader.prompt, 4)


def test_fieldbug_37_a_prefix_cache_hit_does_not_change_greedy_text(executor: TorchExecutor, oracle: Oracle) -> None:
    """Cold, then on pages that an earlier sequence left; the last, partial page is always the sequence's own."""
    prompt = _prompt(23, 4 * PAGE_SIZE + 2)
    cold = Sequence(1, prompt, list(range(8)))
    decode(executor, cold, num_steps=5)
    for hit_pages in (1, 2, 4):
        table = [*range(hit_pages), *range(20, 28 - hit_pages)]
        warm = Sequence(2, prompt, table, computed=hit_pages * PAGE_SIZE)
        decode(executor, warm, num_steps=5)
        assert warm.output == cold.output
    assert cold.output == oracle.greedy(prompt, 5)


def test_pages_of_ended_sequences_are_used_again(executor: TorchExecutor, oracle: Oracle) -> None:
    """What an earlier sequence left behind the new one's end is never seen."""
    decode(executor, Sequence(1, _prompt(24, 60), list(range(20))), num_steps=3)
    for length in (2, 7, 33):
        sequence = Sequence(2, _prompt(25, length), list(reversed(range(20))))
        decode(executor, sequence, num_steps=4)
        assert sequence.output == oracle.greedy(sequence.prompt, 4)


def test_a_seeded_sequence_depends_neither_on_batch_mates_nor_on_recomputation(executor: TorchExecutor) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=1234)
    alone = Sequence(1, _prompt(30, 10), list(range(8)), params)
    decode(executor, alone, num_steps=12)
    mates = [
        Sequence(2, _prompt(31, 22), list(range(8, 20)), SamplingParams(seed=99, top_k=5)),
        Sequence(3, _prompt(32, 5), list(range(20, 30)), GREEDY),
    ]
    again = Sequence(4, _prompt(30, 10), list(range(30, 40)), params)
    decode(executor, mates[0], again, mates[1], num_steps=6)
    preempted = replace(again, page_table=list(range(50, 60)), computed=0)
    step(executor, (preempted, 9), (mates[0], None))  # recomputed: prompt and output, in two chunks
    decode(executor, preempted, num_steps=6)
    assert preempted.output == alone.output
    assert len(set(alone.output)) > 4


def test_broken_logits_fail_the_step_and_leave_no_trace(
    model: Decoder, executor: TorchExecutor, oracle: Oracle
) -> None:
    pages = [0, 1, 2, 3]
    weight = model.layers[0].attention_norm.weight
    healthy = weight.clone()
    weight[3] = torch.nan
    try:
        with pytest.raises(BrokenSequencesError, match=r"sequences \[1\]"):
            step(executor, (Sequence(1, _prompt(39, 16), pages), None))
    finally:
        weight.copy_(healthy)
    sequence = Sequence(1, _prompt(40, 5), pages)
    decode(executor, sequence, num_steps=3)  # ends inside a page that the broken step had filled
    assert sequence.output == oracle.greedy(sequence.prompt, 3)


def test_steps_that_sample_nothing(executor: TorchExecutor) -> None:
    assert executor.execute(StepPlan(3, [])).token_ids == {}
    assert executor.execute(StepPlan(4, [Sequence(1, _prompt(41, 6), [0, 1]).plan(5)])).token_ids == {}


def test_a_page_table_that_is_too_short_is_an_error(executor: TorchExecutor) -> None:
    with pytest.raises(IndexError):
        step(executor, (Sequence(1, _prompt(42, 6), [0]), None))


def test_info_names_the_lowest_limit(model: Decoder) -> None:
    assert TorchExecutor(ModelRunner(model, num_pages=10, page_size=8)).info.max_model_len == 80
    assert TorchExecutor(ModelRunner(model, num_pages=100, page_size=16)).info.max_model_len == 512
    info = TorchExecutor(ModelRunner(model, num_pages=100, max_model_len=50)).info
    assert (info.num_pages, info.page_size, info.vocab_size, info.max_model_len) == (100, 16, 97, 50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_bytes_per_page_is_what_the_pool_takes(model: Decoder, dtype: torch.dtype) -> None:
    pool = KvPool(model.config, 6, 8, dtype, model.device)
    keys, values = pool.gather(0, torch.arange(6))
    assert (keys.nbytes + values.nbytes) * model.config.num_layers == 6 * kv_bytes_per_page(model.config, dtype, 8)


@pytest.mark.parametrize("family", ["llama, 9 heads, 3 KV heads", "qwen2", "qwen3"])
def test_bfloat16_stays_close_to_float32(family: str) -> None:
    """bfloat16 holds 8 bits: logits differ from float32's by at most 6 % of their spread, in prefill and in decode."""
    config = FAMILIES[family]
    expected_of = Oracle.of(config).logits
    model = decoder(config, dtype=torch.bfloat16)
    pool = KvPool(model.config, 16, PAGE_SIZE, torch.bfloat16, model.device)
    sequence = Sequence(1, _prompt(50, 40), list(range(16)))
    for _ in range(6):
        logits = step_logits(model, pool, sequence.plan())[1]
        assert logits.dtype == torch.bfloat16
        known = sequence.prompt + sequence.output
        expected = expected_of(known)[-1]
        assert (logits.float() - expected).abs().max() < 0.06 * (expected.max() - expected.min())
        sequence.computed = len(known)
        sequence.output.append(int(expected.argmax()))


def test_bfloat16_runs_mixed_steps(oracle: Oracle) -> None:
    executor = TorchExecutor(ModelRunner(decoder(LLAMA, dtype=torch.bfloat16), num_pages=32, page_size=PAGE_SIZE))
    sequence, other = Sequence(1, _prompt(51, 20), list(range(12))), Sequence(2, _prompt(52, 9), list(range(12, 20)))
    decode(executor, sequence, num_steps=2)
    step(executor, (other, None), (sequence, None))
    decode(executor, sequence, other, num_steps=2)
    spread = oracle.logits(sequence.prompt)
    for index, token in enumerate(sequence.output):  # each token is (nearly) the best one after those before it
        logits = oracle.logits(sequence.prompt + sequence.output[:index])[-1]
        assert logits[token] > logits.max() - 0.06 * (spread.max() - spread.min())

"""Padded, recorded and replayed decodes are what plain steps are, and nothing but their own pages is touched."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from services.engine.executor.attention import TorchAttention
from services.engine.executor.batch import StepBatch
from services.engine.executor.decode_graphs import DecodeGraphs, GraphOptions, graph_sizes
from services.engine.executor.flashinfer_attention import FlashInferAttention
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.model_runner import MakeAttention, ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.uploads import Uploads
from services.engine.plan import SequencePlan
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.plans import Sequence, decode, step
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.models.reference import FAMILIES, Oracle, decoder

PAGE_SIZE = 4
NUM_PAGES = 48
BACKENDS: dict[str, MakeAttention] = {
    "torch": TorchAttention,
    "flashinfer": partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64),
}


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(length)]


def _sequences(*lengths: int) -> list[Sequence]:
    """With scattered pages, room for 12 more tokens each, and no page in two tables."""
    pages = random.Random(0).sample(range(NUM_PAGES), NUM_PAGES)
    sequences = []
    for index, length in enumerate(lengths):
        count = -(-(length + 12) // PAGE_SIZE)
        sequences.append(Sequence(index, _prompt(index, length), pages[:count]))
        pages = pages[count:]
    return sequences


def test_sizes_pad_a_step_by_less_than_it_has_or_by_less_than_eight() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(6) == (1, 2, 4, 6)
    assert graph_sizes(8) == (1, 2, 4, 8)
    assert graph_sizes(27) == (1, 2, 4, 8, 16, 24, 27)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["llama, 9 heads, 3 KV heads", "gemma2"])
def test_tokens_are_those_of_transformers_whichever_way_a_step_runs(backend: str, family: str) -> None:
    recorder = RecorderOnCpu()
    options = RunnerOptions(BACKENDS[backend], GraphOptions(lambda: recorder, (1, 2, 4)))
    executor = TorchExecutor(ModelRunner(decoder(FAMILIES[family]), NUM_PAGES, PAGE_SIZE, 48, options))
    assert recorder.log == ["warm up 4", "record 4", "warm up 2", "record 2", "warm up 1", "record 1"]
    recorder.log.clear()
    a, b, c, d, e = sequences = _sequences(21, 5, 1, 3, 16)
    step(executor, (a, None), (b, None))
    step(executor, (a, None), (c, 1), (b, None))  # a prompt of one token is computed as a decode
    assert recorder.log == ["replay 4"]
    step(executor, (d, None), (e, 9), (a, None))
    step(executor, (e, None), (b, None))
    assert recorder.log == ["replay 4"]
    decode(executor, a, b, c, d, e, num_steps=2)  # more than the largest holds
    assert recorder.log == ["replay 4"]
    decode(executor, e, c, a, num_steps=2)
    decode(executor, d, b, num_steps=2)
    decode(executor, a, num_steps=2)
    decode(executor, b, c, d, e, num_steps=1)
    assert recorder.log[1:] == ["replay 4"] * 2 + ["replay 2"] * 2 + ["replay 1"] * 2 + ["replay 4"]
    oracle = Oracle.of(FAMILIES[family])
    for sequence in sequences:
        assert sequence.output == oracle.greedy(sequence.prompt, len(sequence.output))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_and_pages_are_those_of_a_plain_step(backend: str) -> None:
    """The pads write to the page behind the others; every other slot of the pool holds what it holds without them."""
    model = decoder(FAMILIES["gemma2"])
    pools = [KvPool(model.config, NUM_PAGES + 1, PAGE_SIZE, torch.float32, model.device) for _ in range(2)]
    plain, fixed = (BACKENDS[backend](pool, model.config) for pool in pools)
    uploads = Uploads(model.device)
    graphs = DecodeGraphs(
        model,
        pools[1],
        fixed,
        GraphOptions(RecorderOnCpu, (2, 4)),
        uploads=uploads,
        pages_per_sequence=8,
        scratch_page=NUM_PAGES,
    )
    sequences = _sequences(20, 7, 12)
    with torch.inference_mode():
        for pool in pools:
            attention = BACKENDS[backend](pool, model.config)
            batch = StepBatch.build([s.plan() for s in sequences], PAGE_SIZE, uploads)
            model.hidden_states(batch.token_ids, batch.positions, attention.prepare(batch))
        for sequence in sequences:
            sequence.computed += len(sequence.prompt)
        for number in range(5):
            plans: list[SequencePlan] = []
            for sequence in sequences:
                sequence.output.append(number)
                plans.append(sequence.plan())
                sequence.computed += 1
            batch = StepBatch.build(plans, PAGE_SIZE, uploads)
            expected = model.hidden_states(batch.token_ids, batch.positions, plain.prepare(batch))[batch.sampled_rows]
            graph = graphs.holding(plans)
            assert graph is not None
            assert graph.size == 4
            padded = StepBatch.build(graph.padded(plans), PAGE_SIZE, uploads)
            assert padded.sampled_ids == batch.sampled_ids
            graph.fill(padded)
            found = graph.hidden_states()[padded.sampled_rows]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    every = torch.arange(NUM_PAGES)
    for layer in range(model.config.num_layers):
        for found, expected in zip(pools[1].gather(layer, every), pools[0].gather(layer, every), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert pools[1].pages(layer)[0][NUM_PAGES].count_nonzero() > 0


def test_steps_that_no_graph_holds() -> None:
    model = decoder(FAMILIES["llama"])
    pool = KvPool(model.config, 9, PAGE_SIZE, torch.float32, model.device)
    options = GraphOptions(RecorderOnCpu, (1, 3))
    graphs = DecodeGraphs(
        model,
        pool,
        TorchAttention(pool, model.config),
        options,
        uploads=Uploads(model.device),
        pages_per_sequence=2,
        scratch_page=8,
    )
    decodes = [SequencePlan(i, [1], 3, [i], []) for i in range(4)]
    assert [getattr(graphs.holding(decodes[:n]), "size", None) for n in (1, 2, 3, 4)] == [1, 3, 3, None]
    assert graphs.holding([decodes[0], SequencePlan(9, [1, 2], 0, [7], [])]) is None


def test_no_sequence_is_given_the_page_of_the_pads() -> None:
    options = GraphOptions(RecorderOnCpu, (1,))
    runner = ModelRunner(decoder(FAMILIES["llama"]), 6, PAGE_SIZE, options=RunnerOptions(graphs=options))
    executor = TorchExecutor(runner)
    assert (executor.info.num_pages, executor.info.max_model_len) == (6, 6 * PAGE_SIZE)

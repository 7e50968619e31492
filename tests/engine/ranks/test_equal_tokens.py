"""A model on several ranks gives the greedy tokens and embeddings of one rank, whatever the schedule. Float32."""

from __future__ import annotations

import itertools
import random
from itertools import count
from typing import Any

import pytest
import torch

from services.engine.executor.base import Executor
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_shard
from services.engine.plan import SamplingParams, StopParams
from services.engine.ranks.group import RankGroup
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.pooling import Pooler, Pooling
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import Sequence
from tests.engine.models.reference import FAMILIES, decoder
from tests.engine.ranks.thread_ranks import LoadPart, thread_ranks

GREEDY = SamplingParams(temperature=0.0)
STREAMS = 32
BUDGET = 48  # tokens of a step


def part_of(config: dict[str, Any]) -> LoadPart:
    parsed = ModelConfig.from_hf(config)

    def load(group: RankGroup) -> Decoder:
        shard = Shard.of(parsed, group.rank, group.size)
        return load_shard(shard, random_weights(parsed, seed=0), torch.float32, "cpu", group)

    return load


def requests() -> list[Sequence]:
    """Half of them share a prefix, longer than a step of `BUDGET`; some score their prompts."""
    rng = random.Random(7)
    shared = [rng.randrange(97) for _ in range(BUDGET + 3)]
    prompts = [
        (shared if i % 2 else []) + [rng.randrange(97) for _ in range(rng.randrange(1, 30))] for i in range(STREAMS)
    ]
    return [
        Sequence(i, prompt, GREEDY, StopParams(16 + i % 7), arrival_ns=i, prompt_logprobs=3 if i % 8 == 0 else None)
        for i, prompt in enumerate(prompts)
    ]


def run(executor: Executor, sequences: list[Sequence], **config: int) -> Scheduler:
    ticks = count(1_000_000, 1_000_000)
    scheduler = Scheduler(SchedulerConfig(**config), executor.info, lambda: next(ticks))
    waiting = list(sequences)
    while waiting or scheduler.has_work:
        for sequence in waiting[:5]:
            scheduler.add(sequence)
        del waiting[:5]
        plan = scheduler.plan()
        assert plan is not None
        scheduler.apply(plan, executor.execute(plan))
    scheduler.check_idle()
    return scheduler


def alone(config: dict[str, Any]) -> list[list[int]]:
    """Each request by itself on one rank, its prompt in one step."""
    outputs = []
    for sequence in requests():
        run(TorchExecutor(ModelRunner(decoder(config), num_pages=8)), [sequence])
        outputs.append(sequence.output_ids)
    return outputs


@pytest.mark.parametrize(
    ("family", "size"),
    [
        ("llama", 2),
        ("qwen3", 2),
        ("llama, 9 heads, 3 KV heads", 2),
        ("llama, 9 heads, 3 KV heads", 4),
        ("llama", 4),
        ("qwen3", 4),
    ],
)
def test_streams_in_chunks_preempted_and_with_shared_prefixes(family: str, size: int) -> None:
    sequences = requests()
    with thread_ranks(size, part_of(FAMILIES[family]), num_pages=110, page_size=4) as ranks:
        scheduler = run(ranks, sequences, max_batch_tokens=BUDGET, max_num_seqs=STREAMS)
    assert [sequence.output_ids for sequence in sequences] == alone(FAMILIES[family])
    assert scheduler.counters.preemptions > 0
    assert scheduler.counters.prefix_hit_tokens > 0


def test_embeddings_in_chunks_beside_streams() -> None:
    """The states are whole on rank 0, and the others need not know that they are wanted."""
    config = FAMILIES["llama, 9 heads, 3 KV heads"]
    prompts = [request.prompt_ids for request in requests()[1:8:2]]

    def embedded() -> list[Sequence]:
        return [
            Sequence(100 + i, prompt, GREEDY, StopParams(0), arrival_ns=i, pooler=Pooler(pooling, len(prompt)))
            for i, (prompt, pooling) in enumerate(itertools.product(prompts, Pooling))
        ]

    divided, whole = embedded(), embedded()
    with thread_ranks(2, part_of(config), num_pages=110, page_size=4) as ranks:
        run(ranks, [*requests()[:4], *divided], max_batch_tokens=32, max_num_seqs=STREAMS)
    for sequence in whole:
        run(TorchExecutor(ModelRunner(decoder(config), num_pages=8)), [sequence])
    for one, other in zip(divided, whole, strict=True):
        assert one.pooler is not None
        assert other.pooler is not None
        assert one.pooler.embedding() == pytest.approx(other.pooler.embedding(), abs=1e-5)

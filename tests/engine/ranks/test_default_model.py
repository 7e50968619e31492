"""The default model, whose 9 heads and 3 KV heads do not divide, on two and four ranks: the tokens of one. Float32."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer

from services.engine.executor.base import Executor
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.files import read_model_files
from services.engine.loading.source import resolve
from services.engine.loading.weights import iter_lazily, iter_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_model, load_shard
from services.engine.plan import SamplingParams, StopParams
from services.engine.ranks.group import RankGroup
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import Sequence
from tests.engine.ranks.test_equal_tokens import STREAMS, run
from tests.engine.ranks.thread_ranks import thread_ranks

SOURCE = resolve("default")
FILES = read_model_files(SOURCE)
CONFIG = ModelConfig.from_hf(FILES.config, 1024)
NUM_PAGES, PAGE_SIZE = 90, 4


def requests() -> list[Sequence]:
    tokenizer = Tokenizer.from_buffer(FILES.tokenizer_files["tokenizer.json"])
    texts = [
        f"Once upon a time there were {n + 2} {'riders' if n % 2 else 'stations on a post road'} who"
        for n in range(STREAMS)
    ]
    greedy = SamplingParams(temperature=0.0)
    return [Sequence(n, tokenizer.encode(text).ids, greedy, StopParams(12), 0) for n, text in enumerate(texts)]


def outputs(executor: Executor) -> tuple[list[list[int]], Scheduler]:
    sequences = requests()
    scheduler = run(executor, sequences, max_batch_tokens=96, max_num_seqs=STREAMS)
    return [sequence.output_ids for sequence in sequences], scheduler


@pytest.fixture(scope="module")
def of_one_rank() -> list[list[int]]:
    model = load_model(CONFIG, iter_weights(SOURCE, FILES.config), torch.float32, "cpu")
    tokens, _ = outputs(TorchExecutor(ModelRunner(model, num_pages=600, page_size=PAGE_SIZE)))
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_streams_of_the_default_model(size: int, of_one_rank: list[list[int]]) -> None:
    def load(group: RankGroup) -> Decoder:
        shard = Shard.of(CONFIG, group.rank, group.size)
        return load_shard(shard, iter_lazily(SOURCE, FILES.config), torch.float32, "cpu", group)

    with thread_ranks(size, load, num_pages=NUM_PAGES, page_size=PAGE_SIZE) as ranks:
        tokens, scheduler = outputs(ranks)
    assert tokens == of_one_rank
    assert scheduler.counters.preemptions > 0
    assert scheduler.counters.prefix_hit_tokens > 0

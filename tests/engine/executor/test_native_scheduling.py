"""Scheduler and native executor together: every request gets the tokens of its lone run, bit for bit.

Drawn tokens depend on all logits of a row, so they would show a difference in the last bit sooner or later.
"""

from __future__ import annotations

import random
from itertools import count

import pytest

pytest.importorskip("postroad_native")

from services.engine.executor.native_executor import NativeExecutor
from services.engine.plan import SamplingParams, StopParams
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import Sequence
from services.engine.scheduler.speculation import Speculation
from tests.engine.executor.native_executors import native_executor
from tests.engine.models.reference import FAMILIES

QWEN3 = FAMILIES["qwen3"]


def _request(sequence_id: int, prompt: list[int], max_tokens: int) -> Sequence:
    sampling = SamplingParams(seed=sequence_id, top_p=random.Random(sequence_id).choice([0.9, 1.0]))
    return Sequence(sequence_id, prompt, sampling, StopParams(max_tokens), arrival_ns=sequence_id)


def _repetitive_request(sequence_id: int, prompt: list[int], max_tokens: int) -> Sequence:
    """Few tokens to choose from, with all that depends on those before: guesses often hold, and often do not."""
    sampling = SamplingParams(
        seed=sequence_id,
        temperature=(0.0, 0.2, 0.7)[sequence_id % 3],
        frequency_penalty=0.1 * (sequence_id % 2),
        repetition_penalty=1.0 + 0.1 * (sequence_id % 4),
        logit_bias=dict.fromkeys(range(2 + sequence_id % 3), 12.0),
    )
    stop = StopParams(max_tokens, min_tokens=max_tokens // 2, stop_token_ids=frozenset({1}))
    return Sequence(sequence_id, prompt, sampling, stop, arrival_ns=sequence_id)


def _run(executor: NativeExecutor, requests: list[Sequence], *, arrive: int = 100, **config: int) -> Scheduler:
    """Runs requests to their end. `arrive` of them come before each step."""
    ticks = count(1_000_000, 1_000_000)
    scheduler = Scheduler(SchedulerConfig(**config), executor.info, lambda: next(ticks))
    waiting = list(requests)
    while waiting or scheduler.has_work:
        for request in waiting[:arrive]:
            scheduler.add(request)
        del waiting[:arrive]
        plan = scheduler.plan()
        assert plan is not None
        scheduler.apply(plan, executor.execute(plan))
        scheduler.check_integrity()
    scheduler.check_idle()
    return scheduler


def _lone_runs(requests: list[Sequence]) -> list[list[int]]:
    """The same requests one by one and without guesses, each prefilled in one step."""
    executor = native_executor(QWEN3)
    outputs = []
    for request in requests:
        alone = Sequence(request.sequence_id, request.prompt_ids, request.sampling, request.stop, arrival_ns=0)
        _run(executor, [alone], max_batch_tokens=512)
        outputs.append(alone.output_ids)
    return outputs


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(97) for _ in range(length)]


@pytest.mark.parametrize("seed", [1, 2])
def test_preempted_and_recomputed_requests(seed: int) -> None:
    """Eight requests of up to six pages on nine pages, in chunks of a small budget."""
    rng = random.Random(seed)
    requests = [_request(i, _prompt(rng, rng.randrange(1, 50)), rng.randrange(20, 40)) for i in range(8)]
    _run(native_executor(QWEN3, num_pages=9), requests, arrive=3, max_batch_tokens=24, max_num_seqs=8)
    assert any(request.preemptions for request in requests)
    assert [request.output_ids for request in requests] == _lone_runs(requests)


@pytest.mark.parametrize("arrive", [1, 12])
def test_requests_that_share_a_prefix(arrive: int) -> None:
    """One after the other, so that pages are found in the cache, or together, so that one of them computes for all."""
    rng = random.Random(3)
    shared = _prompt(rng, 3 * 16 + 5)
    requests = [_request(i, shared + _prompt(rng, i % 4), 12) for i in range(12)]
    _run(native_executor(QWEN3), requests, arrive=arrive, max_batch_tokens=64, max_num_seqs=12)
    assert all(request.cached_tokens == 48 for request in requests[1:])
    assert [request.output_ids for request in requests] == _lone_runs(requests)


def test_pages_that_were_evicted_and_used_again() -> None:
    """More distinct prompts than the pool holds, then the first ones again: cold, warm and evicted give one text."""
    rng = random.Random(4)
    prompts = [_prompt(rng, 60) for _ in range(6)]
    requests = [_request(i, prompts[i % 6], 8) for i in range(12)]
    _run(native_executor(QWEN3, num_pages=16), requests, arrive=1, max_batch_tokens=40, max_num_seqs=2)
    assert [request.output_ids for request in requests] == _lone_runs(requests)


@pytest.mark.parametrize("num_pages", [7, 64])
def test_fieldbug_38_requests_whose_tokens_are_guessed(num_pages: int) -> None:
    """Greedy and seeded, with penalties, bias, stop ids and min_tokens; on few pages preempted between guesses, too."""
    rng = random.Random(5)
    requests = [_repetitive_request(i, _prompt(rng, rng.randrange(1, 50)), rng.randrange(30, 60)) for i in range(9)]
    for request in requests:
        request.speculation = Speculation(rng.choice([2, 5, 16]))
    executor = native_executor(QWEN3, num_pages=num_pages)
    scheduler = _run(executor, requests, arrive=3, max_batch_tokens=48, max_num_seqs=8)
    assert (scheduler.counters.preemptions > 0) is (num_pages == 7)
    assert scheduler.counters.spec_decode_draft_tokens > scheduler.counters.spec_decode_accepted_tokens > 50
    assert [request.output_ids for request in requests] == _lone_runs(requests)

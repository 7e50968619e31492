"""Requests of every kind through scheduler and executor, one step after the other or each launched ahead."""

from __future__ import annotations

import random

from services.engine.executor.base import Executor, OverlappingExecutor
from services.engine.plan import SamplingParams, StopParams
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import Sequence

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.3, seed=5),
    SamplingParams(temperature=1.0, top_p=0.8, seed=6),
    SamplingParams(temperature=0.9, top_k=9, min_p=0.01, seed=7, logit_bias={3: 2.0}),
    SamplingParams(temperature=0.8, seed=8, repetition_penalty=1.2),
]


def requests() -> list[Sequence]:
    """For a vocabulary of 97 tokens."""
    rng = random.Random(3)
    return [
        Sequence(
            number,
            [rng.randrange(97) for _ in range(rng.randrange(3, 20))],
            PARAMS[number % len(PARAMS)],
            StopParams(rng.randrange(6, 18), min_tokens=4, stop_token_ids=frozenset({rng.randrange(97), 11})),
            arrival_ns=0,
            logprobs=2 if number % 3 == 1 else None,
        )
        for number in range(9)
    ]


def served(executor: Executor, sequences: list[Sequence]) -> tuple[dict[int, list[int]], dict[int, list[float]], int]:
    """Tokens and log-probabilities by sequence, and the number of steps that were launched ahead."""
    scheduler = Scheduler(SchedulerConfig(max_batch_tokens=24, max_num_seqs=4), executor.info)
    tokens: dict[int, list[int]] = {s.sequence_id: [] for s in sequences}
    logprobs: dict[int, list[float]] = {s.sequence_id: [] for s in sequences}
    for sequence in sequences:
        scheduler.add(sequence)
    overlapping = executor if isinstance(executor, OverlappingExecutor) else None
    num_ahead, ahead = 0, None
    while True:
        plan, wait = ahead or (scheduler.plan(), None)
        if plan is None:
            break
        if overlapping is None:
            outputs = scheduler.apply(plan, executor.execute(plan))
        else:
            wait = wait or overlapping.launch(plan)
            following = scheduler.plan_ahead()
            ahead = None if following is None else (following, overlapping.launch(following))
            num_ahead += ahead is not None
            outputs = scheduler.apply(plan, wait())
        for output in outputs:
            tokens[output.sequence.sequence_id] += output.token_ids
            if output.logprobs is not None:
                logprobs[output.sequence.sequence_id] += output.logprobs.logprobs
    scheduler.check_idle()
    return tokens, logprobs, num_ahead

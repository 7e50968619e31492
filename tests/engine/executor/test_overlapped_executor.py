"""Steps of the torch executor that are launched before the result of the one before is read."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from services.engine.executor.base import Executor, OverlappingExecutor
from services.engine.executor.decode_graphs import GraphOptions
from services.engine.executor.errors import BrokenSequencesError
from services.engine.executor.flashinfer_attention import FlashInferAttention
from services.engine.executor.overlapped_executor import OverlappedExecutor
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.transfers import Download, Mark, upload
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.weights import load_model
from services.engine.plan import PENDING_TOKEN, SamplingJob, SamplingParams, SequencePlan, StepPlan, StopParams
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import Sequence
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.models.reference import FAMILIES, decoder

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.3, seed=5),
    SamplingParams(temperature=1.0, top_p=0.8, seed=6),
    SamplingParams(temperature=0.9, top_k=9, min_p=0.01, seed=7, logit_bias={3: 2.0}),
    SamplingParams(temperature=0.8, seed=8, repetition_penalty=1.2),
]


def _sequences() -> list[Sequence]:
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


def _served(executor: Executor, sequences: list[Sequence]) -> tuple[dict[int, list[int]], dict[int, list[float]], int]:
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


@pytest.mark.parametrize("with_graphs", [False, True])
def test_tokens_are_those_of_sequential_steps(with_graphs: bool) -> None:
    model = decoder(LLAMA)
    expected = _served(TorchExecutor(model, 24, 4), _sequences())
    make = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64)
    inner = (
        TorchExecutor(model, 24, 4, make_attention=make, graphs=GraphOptions(RecorderOnCpu, (1, 2, 4)))
        if with_graphs
        else TorchExecutor(model, 24, 4)
    )
    tokens, logprobs, num_ahead = _served(OverlappedExecutor(inner), _sequences())
    assert tokens == expected[0]
    for sequence_id, values in logprobs.items():
        assert values == pytest.approx(expected[1][sequence_id], abs=1e-4)
    assert num_ahead > 5


def test_a_launch_reads_nothing_from_the_device() -> None:
    """On torch's meta device there is nothing to read: whatever tries to fails."""
    config = ModelConfig.from_hf(LLAMA)
    model = load_model(config, random_weights(config, seed=0), torch.bfloat16, "meta")
    executor = OverlappedExecutor(TorchExecutor(model, 8, 4))
    jobs = [SamplingJob(params, [1], [2]) for params in PARAMS]
    first = [SequencePlan(i, [1, 2], 0, [i], [job], num_logprobs=i or None) for i, job in enumerate(jobs)]
    ahead = [
        SequencePlan(i, [PENDING_TOKEN], 2, [i], [SamplingJob(params, [1], [2], num_pending=1)])
        for i, params in enumerate(PARAMS)
    ]
    wait = executor.launch(StepPlan(1, first))
    executor.launch(StepPlan(2, ahead))
    with pytest.raises(NotImplementedError, match="meta"):
        wait()


def test_a_broken_step_is_found_when_its_result_is_read() -> None:
    model = decoder(FAMILIES["llama"])
    executor = OverlappedExecutor(TorchExecutor(model, 8, 4))
    weight = model.layers[0].attention_norm.weight
    healthy = weight.clone()
    params = SamplingParams(temperature=1.0, top_k=5)
    weight[3] = torch.nan
    try:
        wait = executor.launch(StepPlan(1, [SequencePlan(7, [1, 2], 0, [0], [SamplingJob(params, [1, 2], [])])]))
        pending = SamplingJob(params, [1, 2], [], num_pending=1)
        executor.launch(StepPlan(2, [SequencePlan(7, [PENDING_TOKEN], 2, [0], [pending])]))
    finally:
        weight.copy_(healthy)
    with pytest.raises(BrokenSequencesError, match="7"):
        wait()
    again = SequencePlan(8, [5, 4], 0, [0], [SamplingJob(SamplingParams(temperature=0.0), [5, 4], [])])
    assert executor.execute(StepPlan(3, [again])).token_ids.keys() == {8}


def test_a_cpu_has_no_queue() -> None:
    device = torch.device("cpu")
    Mark(device).wait()
    assert Download(upload([3, 1, 4], torch.int64, device)).read().tolist() == [3, 1, 4]

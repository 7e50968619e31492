"""Steps of the torch executor that are launched before the result of the one before is read."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from services.engine.executor.decode_graphs import GraphOptions
from services.engine.executor.errors import BrokenSequencesError
from services.engine.executor.flashinfer_attention import FlashInferAttention
from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.overlapped_executor import OverlappedExecutor
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.transfers import Download, Mark
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.weights import load_model
from services.engine.plan import PENDING_TOKEN, SamplingJob, SamplingParams, SequencePlan, StepPlan
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.executor.serving import PARAMS, requests, served
from tests.engine.models.reference import FAMILIES, decoder

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]


@pytest.mark.parametrize("with_graphs", [False, True])
def test_tokens_are_those_of_sequential_steps(with_graphs: bool) -> None:
    model = decoder(LLAMA)
    expected = served(TorchExecutor(ModelRunner(model, 24, 4)), requests())
    make = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64)
    inner = (
        TorchExecutor(ModelRunner(model, 24, 4, options=RunnerOptions(make, GraphOptions(RecorderOnCpu, (1, 2, 4)))))
        if with_graphs
        else TorchExecutor(ModelRunner(model, 24, 4))
    )
    tokens, logprobs, num_ahead = served(OverlappedExecutor(inner), requests())
    assert tokens == expected[0]
    for sequence_id, values in logprobs.items():
        assert values == pytest.approx(expected[1][sequence_id], abs=1e-4)
    assert num_ahead > 5


def test_a_launch_reads_nothing_from_the_device() -> None:
    """On torch's meta device there is nothing to read: whatever tries to fails."""
    config = ModelConfig.from_hf(LLAMA)
    model = load_model(config, random_weights(config, seed=0), torch.bfloat16, "meta")
    executor = OverlappedExecutor(TorchExecutor(ModelRunner(model, 8, 4)))
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
    executor = OverlappedExecutor(TorchExecutor(ModelRunner(model, 8, 4)))
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
    assert Download(torch.tensor([3, 1, 4])).read().tolist() == [3, 1, 4]

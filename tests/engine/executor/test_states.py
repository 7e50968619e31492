"""States of both executors equal transformers' last hidden states, and so do embeddings made of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("postroad_native")

from services.engine.executor.base import Executor
from services.engine.executor.errors import BrokenSequencesError
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.plan import ScoringJob, SequencePlan, States, StepPlan
from services.engine.scheduler.pooling import Pooler, Pooling
from tests.engine.executor.native_executors import native_executor
from tests.engine.executor.plans import Sequence
from tests.engine.models.reference import FAMILIES, Oracle, decoder

VOCAB_SIZE = 97
EXECUTORS: dict[str, Callable[..., Executor]] = {
    "torch": lambda config: TorchExecutor(ModelRunner(decoder(config), num_pages=32, page_size=16)),
    "native": lambda config: native_executor(config, threads=2),
}
LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


def wanted(sequence: Sequence, count: int, pooler: Pooler) -> SequencePlan:
    """The next tokens, none of which is sampled after."""
    plan = sequence.plan(count)
    plan.sampling = []
    plan.state_rows = pooler.rows(plan.start, plan.start + count)
    return plan


def last_states(config: dict[str, object], token_ids: list[int]) -> States:
    model = Oracle.of(config).model
    with torch.inference_mode():
        output = model(torch.tensor([token_ids]), output_hidden_states=True)
    return output.hidden_states[-1][0].numpy()


def embeddings(
    executor: Executor, prompts: list[list[int]], cuts: list[list[int]], pooling: Pooling
) -> list[list[float]]:
    """All prompts side by side; cuts: tokens of each in each step."""
    sequences = [Sequence(i, ids, list(range(4 * i, 4 * i + 4))) for i, ids in enumerate(prompts)]
    poolers = [Pooler(pooling, len(ids)) for ids in prompts]
    for counts in cuts:
        plans = [wanted(s, n, p) for s, n, p in zip(sequences, counts, poolers, strict=True) if n]
        result = executor.execute(StepPlan(1, plans))
        assert set(result.states) == {plan.sequence_id for plan in plans if plan.state_rows}
        for plan in plans:
            sequences[plan.sequence_id].computed += len(plan.token_ids)
            if plan.state_rows:
                poolers[plan.sequence_id].take(result.states[plan.sequence_id])
    return [pooler.embedding() for pooler in poolers]


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("family", ["llama, 9 heads, 3 KV heads", "qwen3", "gemma2"])
def test_embeddings_equal_transformers_over_chunks_beside_others(name: str, family: str) -> None:
    executor = EXECUTORS[name](FAMILIES[family])
    prompts = [prompt(1, 40), prompt(2, 23), prompt(3, 1)]
    for pooling in Pooling:
        got = embeddings(executor, prompts, [[13, 22, 0], [1, 1, 0], [26, 0, 1]], pooling)
        for ids, embedding in zip(prompts, got, strict=True):
            states = last_states(FAMILIES[family], ids).astype(np.float64)
            pooled = states[-1] if pooling is Pooling.LAST else states.mean(0)
            np.testing.assert_allclose(embedding, pooled / np.linalg.norm(pooled), atol=1e-4)


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("weight_format", ["f32", "bf16"])
def test_the_native_step_gives_the_same_bits_however_the_work_is_cut(weight_format: str, pooling: Pooling) -> None:
    executor = native_executor(LLAMA, threads=2, weight_format=weight_format)
    prompts = [prompt(1, 40), prompt(2, 23)]
    alone = [embeddings(executor, [ids], [[len(ids)]], pooling)[0] for ids in prompts]
    for cuts in ([[40, 23]], [[16, 0], [16, 20], [8, 3]], [[1, 22], [39, 1]]):
        assert embeddings(executor, prompts, cuts, pooling) == alone


@pytest.mark.parametrize("name", EXECUTORS)
def test_states_beside_scores_and_samples_go_to_whom_they_belong(name: str) -> None:
    executor = EXECUTORS[name](LLAMA)
    scored, embedded, sampled = (Sequence(i, prompt(i, 20), [2 * i, 2 * i + 1]) for i in range(3))
    scoring = scored.plan(20)
    scoring.scoring = ScoringJob(0, scored.prompt[1:], 2)
    plans = [scoring, wanted(embedded, 20, Pooler(Pooling.MEAN, 20)), sampled.plan()]
    result = executor.execute(StepPlan(1, plans))
    assert (set(result.prompt_logprobs), set(result.states), set(result.token_ids)) == ({0}, {1}, {0, 2})
    np.testing.assert_allclose(result.states[1], last_states(LLAMA, embedded.prompt), atol=1e-3)


def test_states_that_are_not_finite_name_the_sequence() -> None:
    model = decoder(LLAMA)
    executor = TorchExecutor(ModelRunner(model, num_pages=32, page_size=16))
    broken, fine = Sequence(7, [5, 6, 7], [0]), Sequence(8, [8, 9], [1])
    model.embeddings[5] = torch.nan
    plans = [wanted(broken, 3, Pooler(Pooling.LAST, 3)), wanted(fine, 2, Pooler(Pooling.MEAN, 2))]
    with pytest.raises(BrokenSequencesError, match=r"\[7\]"):
        executor.execute(StepPlan(1, plans))

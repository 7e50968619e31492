"""Log-probabilities of both executors equal those of transformers, however the work is cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest
import torch

pytest.importorskip("postroad_native")

from services.engine.executor import logprobs
from services.engine.executor.base import Executor
from services.engine.executor.errors import BrokenSequencesError
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.torch_logprobs import token_logprobs
from services.engine.executor.uploads import Uploads
from services.engine.plan import ScoringJob, SequencePlan, StepPlan, TokenLogprobs
from tests.engine.executor.native_executors import native_executor
from tests.engine.executor.plans import Sequence
from tests.engine.models.reference import FAMILIES, Oracle, decoder

CONFIG = FAMILIES["llama, 9 heads, 3 KV heads"]
VOCAB_SIZE = 97
EXECUTORS: dict[str, Callable[[], Executor]] = {
    "torch": lambda: TorchExecutor(ModelRunner(decoder(CONFIG), num_pages=32, page_size=16)),
    "native": lambda: native_executor(CONFIG, threads=2),
}


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Executor:
    return EXECUTORS[request.param]()


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


def _assert_equal(scores: TokenLogprobs, expected: torch.Tensor, token_ids: list[int], num_top: int) -> None:
    """expected: [tokens, vocab_size], log-probabilities."""
    assert len(scores) == len(token_ids)
    assert scores.num_top == min(num_top, VOCAB_SIZE)
    for index, token_id in enumerate(token_ids):
        row = expected[index]
        assert scores.logprobs[index] == pytest.approx(row[token_id].item(), abs=2e-4)
        assert scores.ranks[index] == int((row > row[token_id]).sum()) + 1
        top = slice(index * scores.num_top, (index + 1) * scores.num_top)
        assert scores.top_ids[top] == row.topk(scores.num_top).indices.tolist()
        torch.testing.assert_close(
            torch.tensor(scores.top_logprobs[top]), row.topk(scores.num_top).values, atol=2e-4, rtol=0
        )


@cache
def _oracle() -> Oracle:
    return Oracle.of(CONFIG)


def _log_softmax(token_ids: list[int]) -> torch.Tensor:
    return _oracle().logits(token_ids).log_softmax(-1)


def _scoring(sequence: Sequence, count: int, num_top: int) -> SequencePlan:
    plan = sequence.plan(count)
    next_ids = sequence.prompt[plan.start + 1 : plan.start + 1 + len(plan.token_ids)]
    plan.scoring = ScoringJob(0, next_ids, num_top) if next_ids else None
    return plan


@pytest.mark.parametrize("rows_at_once", [3, 128])
def test_prompt_logprobs_equal_transformers_over_chunks_beside_other_sequences(
    executor: Executor, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "ROWS_AT_ONCE", rows_at_once)
    first, second = Sequence(1, _prompt(1, 40), [0, 1, 2]), Sequence(2, _prompt(2, 30), [3, 4])
    other = Sequence(3, _prompt(3, 9), [5, 6])
    got = {1: TokenLogprobs(20), 2: TokenLogprobs(0)}
    for counts in ((13, 1), (1, 28), (26, 1)):
        plans = [_scoring(first, counts[0], 20), other.plan(3), _scoring(second, counts[1], 0)]
        result = executor.execute(StepPlan(1, plans))
        assert set(result.prompt_logprobs) == {plan.sequence_id for plan in plans if plan.scoring}
        for sequence_id, scores in result.prompt_logprobs.items():
            got[sequence_id].extend(scores)
        for sequence, plan in zip((first, other, second), plans, strict=True):
            sequence.computed += len(plan.token_ids)
    for sequence, num_top in ((first, 20), (second, 0)):
        expected = _log_softmax(sequence.prompt)[:-1]
        _assert_equal(got[sequence.sequence_id], expected, sequence.prompt[1:], num_top)


def test_sampled_tokens_have_the_logprobs_of_the_model_s_own_distribution(executor: Executor) -> None:
    """Each sequence as many alternatives as it asks for, those that ask for none nothing."""
    sequences = [Sequence(i, _prompt(10 + i, 5 + i), [2 * i, 2 * i + 1]) for i in range(4)]
    wanted = [None, 0, 5, 2000]
    for _ in range(3):
        plans = [sequence.plan() for sequence in sequences]
        for plan, num_top in zip(plans, wanted, strict=True):
            plan.num_logprobs = num_top
        result = executor.execute(StepPlan(1, plans))
        assert set(result.logprobs) == {1, 2, 3}
        for sequence, num_top in zip(sequences, wanted, strict=True):
            known = sequence.prompt + sequence.output
            token_ids = result.token_ids[sequence.sequence_id]
            if num_top is not None:
                _assert_equal(result.logprobs[sequence.sequence_id], _log_softmax(known)[-1:], token_ids, num_top)
            sequence.computed = len(known)
            sequence.output += token_ids


def test_several_sampled_rows_of_one_sequence(executor: Executor) -> None:
    sequence = Sequence(1, _prompt(20, 12), [0, 1])
    executor.execute(StepPlan(1, [sequence.plan(11)]))
    sequence.computed = 11
    plan = sequence.plan_verifying([4, 90])
    plan.num_logprobs = 2
    result = executor.execute(StepPlan(2, [plan]))
    expected = _log_softmax([*sequence.prompt, 4, 90])[-3:]
    _assert_equal(result.logprobs[1], expected, result.token_ids[1], 2)


def test_prompt_logits_that_are_not_finite_name_the_sequence() -> None:
    model = decoder(CONFIG)
    executor = TorchExecutor(ModelRunner(model, num_pages=32, page_size=16))
    healthy = model.embeddings.clone()
    sequence = Sequence(7, _prompt(30, 12), [0])
    model.embeddings[sequence.prompt[0]] = torch.nan
    try:
        with pytest.raises(BrokenSequencesError, match=r"\[7\]"):
            executor.execute(StepPlan(1, [_scoring(sequence, 5, 1)]))
    finally:
        model.embeddings.copy_(healthy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_logits_rank_by_id(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(6, 300) * 4).to(dtype)
    logits[0, 5] = logits[0, 9] = -0.0
    logits[0, 7] = 0.0
    logits[1] = 0
    token_ids = [7, 5, 299, 17, 100, 3]
    scores = token_logprobs(logits, token_ids, 20, Uploads(logits.device))
    order = torch.sort(logits.float() + 0.0, dim=-1, descending=True, stable=True).indices
    assert scores.top_ids == order[:, :20].flatten().tolist()
    assert scores.ranks == [order[row].tolist().index(token_id) + 1 for row, token_id in enumerate(token_ids)]

"""Step plans by hand: sequences whose pages a test lays out itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.engine.executor.attention import AttentionBackend, TorchAttention
from services.engine.executor.base import Executor
from services.engine.executor.batch import StepBatch
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.uploads import Uploads
from services.engine.models.decoder import Decoder
from services.engine.plan import SamplingJob, SamplingParams, SequencePlan, StepPlan

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Sequence:
    """One request: its tokens so far, how many of them are computed, and its pages."""

    sequence_id: int
    prompt: list[int]
    page_table: list[int]
    params: SamplingParams = GREEDY
    computed: int = 0
    output: list[int] = field(default_factory=list)

    def plan(self, num_tokens: int | None = None) -> SequencePlan:
        """The next `num_tokens` tokens that are not computed yet; all of them by default."""
        known = self.prompt + self.output
        end = len(known) if num_tokens is None else self.computed + num_tokens
        jobs = [SamplingJob(self.params, self.prompt, self.output)] if end == len(known) else []
        return SequencePlan(self.sequence_id, known[self.computed : end], self.computed, self.page_table, jobs)

    def plan_verifying(self, proposed: list[int]) -> SequencePlan:
        """The one token that is not computed yet and guesses of those that follow, with a job for each of them."""
        known = self.prompt + self.output
        assert self.computed == len(known) - 1
        jobs = [
            SamplingJob(self.params, self.prompt, self.output + proposed[:count]) for count in range(len(proposed) + 1)
        ]
        return SequencePlan(self.sequence_id, [known[-1], *proposed], self.computed, self.page_table, jobs)


def step(executor: Executor, *plans: tuple[Sequence, int | None]) -> None:
    """Runs one step over (sequence, number of tokens or None for all) and takes up what it sampled."""
    sequences = [sequence.plan(count) for sequence, count in plans]
    result = executor.execute(StepPlan(7, sequences))
    assert result.number == 7
    assert set(result.token_ids) == {plan.sequence_id for plan in sequences if plan.sampling}
    for (sequence, _), plan in zip(plans, sequences, strict=True):
        sequence.computed += len(plan.token_ids)
        if sequence.sequence_id in result.token_ids:
            sequence.output += result.token_ids[sequence.sequence_id]


def decode(executor: Executor, *sequences: Sequence, num_steps: int) -> None:
    for _ in range(num_steps):
        step(executor, *((sequence, None) for sequence in sequences))


def step_logits(
    model: Decoder, pool: KvPool, *plans: SequencePlan, attention: AttentionBackend | None = None
) -> dict[int, Tensor]:
    """Logits of every sequence that samples, by id: what an executor has before it samples."""
    with torch.inference_mode():
        batch = StepBatch.build(plans, pool.page_size, Uploads(model.device))
        attend = (attention or TorchAttention(pool, model.config)).prepare(batch)
        hidden = model.hidden_states(batch.token_ids, batch.positions, attend)
        return dict(zip(batch.sampled_ids, model.logits(hidden[batch.sampled_rows]), strict=True))

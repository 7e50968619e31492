"""The CPU executor: a step is one call of C++ for the model, and one to sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.engine.executor.base import ExecutorInfo
from services.engine.executor.errors import NonFiniteLogitsError
from services.engine.executor.logprobs import require_finite, score_sampled, scoring_slices
from services.engine.executor.native_logprobs import token_logprobs
from services.engine.executor.native_sampler import sample
from services.engine.executor.states import states_by_sequence
from services.engine.plan import SamplingJob, ScoringJob, SequencePlan, StepPlan, StepResult, TokenLogprobs


@dataclass(slots=True)
class FlatStep:
    """A step plan as flat lists, its sequences in the plan's order. Offsets have one entry more than sequences."""

    token_ids: list[int]
    positions: list[int]  # of each token
    sequence_offsets: list[int]  # where each sequence's tokens begin
    context_lengths: list[int]  # of each sequence, tokens in pages once the step is done
    page_table: list[int]  # the sequences' pages, one table after the other
    page_table_offsets: list[int]
    logit_rows: list[int]  # the tokens with a sampling job
    sampled_ids: list[int]  # the id of each one's sequence
    jobs: list[SamplingJob]  # likewise
    state_rows: list[int]  # the tokens to be scored, then those whose states are wanted
    scorings: list[tuple[int, ScoringJob]]  # sequence id and job, in the order of state_rows
    num_states: list[tuple[int, int]]  # sequence id and number of states wanted, likewise

    @classmethod
    def build(cls, sequences: Sequence[SequencePlan], page_size: int) -> FlatStep:
        """Raises IndexError where a page table is too short for its tokens."""
        token_ids: list[int] = []
        positions: list[int] = []
        page_table: list[int] = []
        sequence_offsets, page_table_offsets = [0], [0]
        context_lengths: list[int] = []
        logit_rows: list[int] = []
        sampled_ids: list[int] = []
        jobs: list[SamplingJob] = []
        scored_rows: list[int] = []
        scorings: list[tuple[int, ScoringJob]] = []
        pooled_rows: list[int] = []
        num_states: list[tuple[int, int]] = []
        for sequence in sequences:
            end = sequence.start + len(sequence.token_ids)
            if len(sequence.page_table) * page_size < end:
                raise IndexError(f"the pages of sequence {sequence.sequence_id} do not hold {end} tokens")
            if sequence.scoring is not None:
                scored_rows += (len(token_ids) + row for row in sequence.scoring.rows)
                scorings.append((sequence.sequence_id, sequence.scoring))
            if sequence.state_rows:
                pooled_rows += (len(token_ids) + row for row in sequence.state_rows)
                num_states.append((sequence.sequence_id, len(sequence.state_rows)))
            token_ids += sequence.token_ids
            positions += range(sequence.start, end)
            page_table += sequence.page_table
            sequence_offsets.append(len(token_ids))
            page_table_offsets.append(len(page_table))
            context_lengths.append(end)
            num_sampled = len(sequence.sampling)
            logit_rows += range(len(token_ids) - num_sampled, len(token_ids))
            sampled_ids += [sequence.sequence_id] * num_sampled
            jobs += sequence.sampling
        return cls(
            token_ids=token_ids,
            positions=positions,
            sequence_offsets=sequence_offsets,
            context_lengths=context_lengths,
            page_table=page_table,
            page_table_offsets=page_table_offsets,
            logit_rows=logit_rows,
            sampled_ids=sampled_ids,
            jobs=jobs,
            state_rows=scored_rows + pooled_rows,
            scorings=scorings,
            num_states=num_states,
        )


class NativeExecutor:
    """Implements `Executor` over a `postroad_native.Model`, which owns weights and KV pool."""

    def __init__(self, model: Any, info: ExecutorInfo, threads: int) -> None:
        """`model` is finished and has `info.num_pages` pages of `info.page_size` tokens. `threads` are for sampling."""
        self.info = info
        self._model = model
        self._threads = threads

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step. Raises BrokenSequencesError for logits or states that are not finite."""
        if not plan.sequences:
            return StepResult(plan.number, {})
        step = FlatStep.build(plan.sequences, self.info.page_size)
        logits = self._model.step(
            token_ids=step.token_ids,
            positions=step.positions,
            sequence_offsets=step.sequence_offsets,
            context_lengths=step.context_lengths,
            page_table=step.page_table,
            page_table_offsets=step.page_table_offsets,
            logit_rows=step.logit_rows,
            state_rows=step.state_rows,
        )
        try:
            tokens = sample(logits, step.jobs, self._threads)
        except NonFiniteLogitsError as error:
            raise error.of_sequences(step.sampled_ids) from error
        result = StepResult.of_rows(plan.number, step.sampled_ids, tokens)

        def score(rows: list[int], token_ids: list[int], num_top: int) -> TokenLogprobs:
            return token_logprobs(logits, rows, token_ids, min(num_top, self.info.vocab_size), self._threads)

        result.logprobs = score_sampled(plan.sequences, step.sampled_ids, result.token_ids, score)
        first = 0
        for sequence_id, job in step.scorings:
            result.prompt_logprobs[sequence_id] = self._score_prompt(sequence_id, first, job)
            first += len(job.next_ids)
        if step.num_states:
            result.states = states_by_sequence(self._model.states()[first:], step.num_states)
        return result

    def _score_prompt(self, sequence_id: int, first: int, job: ScoringJob) -> TokenLogprobs:
        """`first`: where the job's rows begin among the step's state rows."""
        scores = TokenLogprobs(min(job.num_top, self.info.vocab_size))
        for start, next_ids in scoring_slices(job):
            logits = self._model.state_logits(first + start, len(next_ids))
            scores.extend(token_logprobs(logits, range(len(next_ids)), next_ids, scores.num_top, self._threads))
        require_finite(sequence_id, scores)
        return scores

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self._model.isa)

    @property
    def num_linears(self) -> dict[str, int]:
        """Number of linear layers by how their weights are stored."""
        return dict(self._model.num_linears)

    def close(self) -> None:
        """Drops weights and KV pool."""
        del self._model

"""The executor in torch: runs step plans on any device that torch has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from services.engine.executor.base import WaitForResult
from services.engine.executor.launched_step import LaunchedStep
from services.engine.executor.logprobs import require_finite, scoring_slices
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.states import states_by_sequence
from services.engine.executor.torch_logprobs import token_logprobs
from services.engine.plan import ScoringJob, StepPlan, StepResult, TokenLogprobs


class TorchExecutor:
    """Implements `Executor`. Of a model that is divided among ranks it is rank 0's."""

    def __init__(self, runner: ModelRunner) -> None:
        """Nobody else may use the runner."""
        self._runner = runner
        self.info = runner.info
        self._previous: LaunchedStep | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step. Raises BrokenSequencesError for logits or states that are not finite; the KV pool is then
        empty."""
        return self.start(plan)()

    def start(self, plan: StepPlan) -> WaitForResult:
        """Launches one step; what it returns waits for the step, and for none that is launched after it.

        The start itself waits for states and for the log-probabilities of prompts. Raises as `execute`.
        """
        if not plan.sequences:
            return partial(StepResult, plan.number, {})
        with self._voided_by_failure(), torch.inference_mode(), self._runner.uploads.step():
            return partial(self._finish, self._launch(plan))

    def record_graphs(self, sizes: Sequence[int] | None = None) -> None:
        """For a divided model, when the ranks are together, as `ModelRunner.record_graphs`."""
        self._runner.record_graphs(sizes)

    def drop_graphs(self) -> None:
        """Before the ranks part."""
        self._runner.drop_graphs()

    def close(self) -> None:
        """Drops weights and KV pool."""
        del self._runner, self._previous

    def _launch(self, plan: StepPlan) -> LaunchedStep:
        model = self._runner.model
        batch, hidden_states = self._runner.compute(plan.sequences, self._previous.fill_in if self._previous else None)
        step = LaunchedStep(plan, batch.sampled_ids, batch.uploads)
        if batch.jobs:
            step.sample(model.logits(hidden_states[batch.sampled_rows]), batch.jobs, self._runner.draw_truncated)
        self._previous = step
        for sequence_id, first_row, job in batch.scorings:
            step.prompt_logprobs[sequence_id] = self._score_prompt(sequence_id, hidden_states[first_row:], job)
        if batch.num_states:
            states = model.norm(hidden_states[batch.state_rows]).float().cpu().numpy()
            step.states = states_by_sequence(states, batch.num_states)
        return step

    def _finish(self, step: LaunchedStep) -> StepResult:
        with self._voided_by_failure():
            return step.result()

    @contextmanager
    def _voided_by_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._runner.clear()
            raise

    def _score_prompt(self, sequence_id: int, hidden_states: Tensor, job: ScoringJob) -> TokenLogprobs:
        """hidden_states: [at least len(job.next_ids), hidden_size], those of the job first."""
        scores = TokenLogprobs(min(job.num_top, self.info.vocab_size))
        for start, next_ids in scoring_slices(job):
            logits = self._runner.model.logits(hidden_states[start : start + len(next_ids)])
            scores.extend(token_logprobs(logits, next_ids, job.num_top, self._runner.uploads))
        require_finite(sequence_id, scores)
        return scores

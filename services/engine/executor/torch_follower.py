"""What a tensor-parallel rank that does not lead makes of a step plan: its part of the model, and no tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.engine.executor.logprobs import scoring_slices
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.transfers import Mark
from services.engine.plan import StepPlan


class TorchFollower:
    """Calls the collectives in the order in which rank 0's TorchExecutor does. Only rank 0 gets logits, and samples."""

    def __init__(self, runner: ModelRunner) -> None:
        """Nobody else may use the runner."""
        self._runner = runner

    def execute(self, plan: StepPlan) -> Mark:
        """Launches one step; it is over where the mark is. Whatever it raises, the KV pool's content is then void."""
        model = self._runner.model
        with torch.inference_mode(), self._runner.uploads.step():
            if plan.sequences:
                batch, hidden_states = self._runner.compute(plan.sequences, None)
                if batch.jobs:
                    model.logits(hidden_states[batch.sampled_rows])
                for _, first_row, job in batch.scorings:
                    for start, next_ids in scoring_slices(job):
                        first = first_row + start
                        model.logits(hidden_states[first : first + len(next_ids)])
            return Mark(model.device)

    def record_graphs(self, sizes: Sequence[int]) -> None:
        """When the ranks are together, for the sizes that rank 0 has."""
        self._runner.record_graphs(sizes)

    def drop_graphs(self) -> None:
        """Before the ranks part."""
        self._runner.drop_graphs()

    def clear(self) -> None:
        """Forgets all keys and values."""
        self._runner.clear()

    def close(self) -> None:
        """Drops weights and KV pool."""
        del self._runner

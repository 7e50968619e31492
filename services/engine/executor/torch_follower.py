"""What a tensor-parallel rank that does not lead makes of a step plan: its part of the model, and no tokens."""

from __future__ import annotations

import torch

from services.engine.executor.attention import TorchAttention
from services.engine.executor.batch import StepBatch
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.logprobs import scoring_slices
from services.engine.models.decoder import Decoder
from services.engine.plan import StepPlan


class TorchFollower:
    """Calls the collectives in the order in which rank 0's TorchExecutor does. Only rank 0 gets logits, and samples."""

    def __init__(self, model: Decoder, num_pages: int, page_size: int) -> None:
        self._model = model
        self._pool = KvPool(model.config, num_pages, page_size, model.dtype, model.device)
        self._attention = TorchAttention(self._pool, model.config)

    def execute(self, plan: StepPlan) -> None:
        """Runs one step. Whatever it raises, the KV pool's content is then void."""
        if not plan.sequences:
            return
        with torch.inference_mode():
            batch = StepBatch.build(plan.sequences, self._pool.page_size, self._model.device)
            attend = self._attention.prepare(batch)
            hidden_states = self._model.hidden_states(batch.token_ids, batch.positions, attend)
            if batch.jobs:
                self._model.logits(hidden_states[batch.sampled_rows])
            for _, first_row, job in batch.scorings:
                for start, next_ids in scoring_slices(job):
                    first = first_row + start
                    self._model.logits(hidden_states[first : first + len(next_ids)])

    def clear(self) -> None:
        """Forgets all keys and values."""
        self._pool.clear()

"""The reference executor: runs step plans with plain torch operations, on any device that torch has."""

from __future__ import annotations

import torch

from services.engine.executor.attention import AttentionBackend, TorchAttention
from services.engine.executor.base import ExecutorInfo
from services.engine.executor.batch import StepBatch
from services.engine.executor.errors import naming_sequences
from services.engine.executor.kv_pool import DEFAULT_PAGE_SIZE, KvPool
from services.engine.executor.sampler import sample
from services.engine.models.decoder import Decoder
from services.engine.plan import StepPlan, StepResult


class TorchExecutor:
    """Implements `Executor`. Float32 and bfloat16, whichever the model is in; the KV pool has the model's dtype."""

    def __init__(
        self,
        model: Decoder,
        num_pages: int,
        page_size: int = DEFAULT_PAGE_SIZE,
        max_model_len: int | None = None,
    ) -> None:
        """Takes `kv_bytes_per_page(model.config, model.dtype, page_size)` times `num_pages` of memory for the KV pool.

        `max_model_len` (tokens) only lowers what the model's config and the pool allow.
        """
        config = model.config
        limits = [config.max_position_embeddings, num_pages * page_size]
        if max_model_len is not None:
            limits.append(max_model_len)
        self.info = ExecutorInfo(num_pages, page_size, config.vocab_size, max_model_len=min(limits))
        self._model = model
        self._pool = KvPool(config, num_pages, page_size, model.dtype, model.device)
        self._attention: AttentionBackend = TorchAttention(self._pool)

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step. Raises BrokenSequencesError for logits that are not finite; the KV pool is then empty."""
        if not plan.sequences:
            return StepResult(plan.number, {})
        try:
            with torch.inference_mode():
                return self._run(plan)
        except BaseException:
            self._pool.clear()
            raise

    def close(self) -> None:
        """Drops weights and KV pool."""
        del self._model, self._pool, self._attention

    def _run(self, plan: StepPlan) -> StepResult:
        batch = StepBatch.build(plan.sequences, self.info.page_size, self._model.device)
        attend = self._attention.prepare(batch)
        hidden_states = self._model.hidden_states(batch.token_ids, batch.positions, attend)
        if not batch.jobs:
            return StepResult(plan.number, {})
        logits = self._model.logits(hidden_states[batch.sampled_rows])
        with naming_sequences(batch.sampled_ids):
            return StepResult.of_rows(plan.number, batch.sampled_ids, sample(logits, batch.jobs))

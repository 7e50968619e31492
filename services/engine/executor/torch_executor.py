"""The executor in torch: runs step plans on any device that torch has.

Attention is a backend's. The rest is plain torch operations, and so is the sampler: flashinfer's sampling draws by a
row's place in the batch besides its seed, and a seeded sequence must not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from services.engine.executor.attention import AttentionBackend, TorchAttention
from services.engine.executor.base import ExecutorInfo
from services.engine.executor.batch import StepBatch
from services.engine.executor.decode_graphs import DecodeGraphs, GraphOptions
from services.engine.executor.errors import naming_sequences
from services.engine.executor.kv_pool import DEFAULT_PAGE_SIZE, KvPool
from services.engine.executor.logprobs import require_finite, score_sampled, scoring_slices
from services.engine.executor.sampler import sample
from services.engine.executor.states import states_by_sequence
from services.engine.executor.torch_logprobs import token_logprobs
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.plan import ScoringJob, SequencePlan, StepPlan, StepResult, TokenLogprobs

MakeAttention = Callable[[KvPool, ModelConfig], AttentionBackend]


class TorchExecutor:
    """Implements `Executor`. Float32 and bfloat16, whichever the model is in; the KV pool has the model's dtype."""

    def __init__(
        self,
        model: Decoder,
        num_pages: int,
        page_size: int = DEFAULT_PAGE_SIZE,
        max_model_len: int | None = None,
        *,
        make_attention: MakeAttention = TorchAttention,
        graphs: GraphOptions | None = None,
    ) -> None:
        """Takes `kv_bytes_per_page(model.config, model.dtype, page_size)` times `num_pages` of memory for the KV pool,
        and one page more where steps are to run as recorded `graphs`.

        `max_model_len` (tokens) only lowers what the model's config and the pool allow.
        """
        config = model.config
        limits = [config.max_position_embeddings, num_pages * page_size]
        if max_model_len is not None:
            limits.append(max_model_len)
        self.info = ExecutorInfo(num_pages, page_size, config.vocab_size, max_model_len=min(limits))
        self._model = model
        self._pool = KvPool(config, num_pages + (graphs is not None), page_size, model.dtype, model.device)
        self._attention = make_attention(self._pool, config)
        self._graphs = None
        if graphs is not None:
            self._graphs = DecodeGraphs(
                model,
                self._pool,
                self._attention,
                graphs,
                pages_per_sequence=-(-self.info.max_model_len // page_size),
                scratch_page=num_pages,
            )

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step. Raises BrokenSequencesError for logits or states that are not finite; the KV pool is then
        empty."""
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
        del self._model, self._pool, self._attention, self._graphs

    def _run(self, plan: StepPlan) -> StepResult:
        batch, hidden_states = self._compute(plan.sequences)
        result = self._sample(plan, batch, hidden_states)
        for sequence_id, first_row, job in batch.scorings:
            result.prompt_logprobs[sequence_id] = self._score_prompt(sequence_id, hidden_states[first_row:], job)
        if batch.num_states:
            states = self._model.norm(hidden_states[batch.state_rows]).float().cpu().numpy()
            result.states = states_by_sequence(states, batch.num_states)
        return result

    def _compute(self, sequences: Sequence[SequencePlan]) -> tuple[StepBatch, Tensor]:
        """The batch, which is padded where a graph computes it, and the hidden states of its tokens."""
        graph = self._graphs.holding(sequences) if self._graphs is not None else None
        if graph is not None:
            sequences = graph.padded(sequences)
        batch = StepBatch.build(sequences, self.info.page_size, self._model.device)
        if graph is not None:
            return batch, graph.hidden_states(batch)
        attend = self._attention.prepare(batch)
        return batch, self._model.hidden_states(batch.token_ids, batch.positions, attend)

    def _sample(self, plan: StepPlan, batch: StepBatch, hidden_states: Tensor) -> StepResult:
        if not batch.jobs:
            return StepResult(plan.number, {})
        logits = self._model.logits(hidden_states[batch.sampled_rows])
        with naming_sequences(batch.sampled_ids):
            result = StepResult.of_rows(plan.number, batch.sampled_ids, sample(logits, batch.jobs))

        def score(rows: list[int], token_ids: list[int], num_top: int) -> TokenLogprobs:
            return token_logprobs(logits[rows], token_ids, num_top)

        result.logprobs = score_sampled(plan.sequences, batch.sampled_ids, result.token_ids, score)
        return result

    def _score_prompt(self, sequence_id: int, hidden_states: Tensor, job: ScoringJob) -> TokenLogprobs:
        """hidden_states: [at least len(job.next_ids), hidden_size], those of the job first."""
        scores = TokenLogprobs(min(job.num_top, self.info.vocab_size))
        for start, next_ids in scoring_slices(job):
            logits = self._model.logits(hidden_states[start : start + len(next_ids)])
            scores.extend(token_logprobs(logits, next_ids, job.num_top))
        require_finite(sequence_id, scores)
        return scores

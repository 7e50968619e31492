"""The executor in torch: runs step plans on any device that torch has.

Attention is a backend's. The rest is plain torch operations, and so is the sampler: flashinfer's sampling draws by a
row's place in the batch besides its seed, and a seeded sequence must not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from services.engine.executor.attention import AttentionBackend, TorchAttention
from services.engine.executor.base import ExecutorInfo, WaitForResult
from services.engine.executor.batch import StepBatch
from services.engine.executor.decode_graphs import DecodeGraphs, GraphOptions
from services.engine.executor.kv_pool import DEFAULT_PAGE_SIZE, KvPool
from services.engine.executor.launched_step import LaunchedStep
from services.engine.executor.logprobs import require_finite, scoring_slices
from services.engine.executor.states import states_by_sequence
from services.engine.executor.torch_logprobs import token_logprobs
from services.engine.executor.transfers import Mark
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.plan import ScoringJob, SequencePlan, StepPlan, StepResult, TokenLogprobs

MakeAttention = Callable[[KvPool, ModelConfig], AttentionBackend]


class TorchExecutor:
    """Implements `Executor`. Float32 and bfloat16, whichever the model is in, or e4m3, as far as that goes."""

    def __init__(
        self,
        model: Decoder,
        num_pages: int,
        page_size: int = DEFAULT_PAGE_SIZE,
        max_model_len: int | None = None,
        *,
        make_attention: MakeAttention = TorchAttention,
        graphs: GraphOptions | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """Takes `kv_bytes_per_page(model.config, kv_dtype, page_size)` times `num_pages` of memory for the KV pool, and
        one page more where steps are to run as recorded `graphs`. `kv_dtype` is the model's dtype or e4m3.

        `max_model_len` (tokens) only lowers what the model's config and the pool allow.
        """
        config = model.config
        limits = [config.max_position_embeddings, num_pages * page_size]
        if max_model_len is not None:
            limits.append(max_model_len)
        self.info = ExecutorInfo(num_pages, page_size, config.vocab_size, max_model_len=min(limits))
        self._model = model
        num_kept = num_pages + (graphs is not None)
        self._pool = KvPool(config, num_kept, page_size, model.dtype, model.device, stored_dtype=kv_dtype)
        self._attention = make_attention(self._pool, config)
        self._previous: LaunchedStep | None = None
        # Attention backends reuse the memory from which a step's page tables are copied.
        self._inputs_taken = Mark(model.device)
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
        return self.start(plan)()

    def start(self, plan: StepPlan) -> WaitForResult:
        """Launches one step; what it returns waits for the step, and for none that is launched after it.

        The start itself waits for states and for the log-probabilities of prompts. Raises as `execute`.
        """
        if not plan.sequences:
            return partial(StepResult, plan.number, {})
        with self._voided_by_failure(), torch.inference_mode():
            return partial(self._finish, self._launch(plan))

    def close(self) -> None:
        """Drops weights and KV pool."""
        del self._model, self._pool, self._attention, self._graphs, self._previous

    def _launch(self, plan: StepPlan) -> LaunchedStep:
        batch, hidden_states = self._compute(plan.sequences)
        step = LaunchedStep(plan, batch.sampled_ids)
        if batch.jobs:
            step.sample(self._model.logits(hidden_states[batch.sampled_rows]), batch.jobs)
        self._previous = step
        for sequence_id, first_row, job in batch.scorings:
            step.prompt_logprobs[sequence_id] = self._score_prompt(sequence_id, hidden_states[first_row:], job)
        if batch.num_states:
            states = self._model.norm(hidden_states[batch.state_rows]).float().cpu().numpy()
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
            self._pool.clear()
            raise

    def _compute(self, sequences: Sequence[SequencePlan]) -> tuple[StepBatch, Tensor]:
        """The batch, which is padded where a graph computes it, and the hidden states of its tokens."""
        self._inputs_taken.wait()
        graph = self._graphs.holding(sequences) if self._graphs is not None else None
        if graph is not None:
            sequences = graph.padded(sequences)
        device = self._model.device
        batch = StepBatch.build(sequences, self.info.page_size, device)
        if batch.pending:
            assert self._previous is not None, "a pending token, and no step before"
            self._previous.fill_in(batch)
        if graph is not None:
            graph.fill(batch)
            self._inputs_taken = Mark(device)
            return batch, graph.hidden_states()
        attend = self._attention.prepare(batch)
        self._inputs_taken = Mark(device)
        return batch, self._model.hidden_states(batch.token_ids, batch.positions, attend)

    def _score_prompt(self, sequence_id: int, hidden_states: Tensor, job: ScoringJob) -> TokenLogprobs:
        """hidden_states: [at least len(job.next_ids), hidden_size], those of the job first."""
        scores = TokenLogprobs(min(job.num_top, self.info.vocab_size))
        for start, next_ids in scoring_slices(job):
            logits = self._model.logits(hidden_states[start : start + len(next_ids)])
            scores.extend(token_logprobs(logits, next_ids, job.num_top))
        require_finite(sequence_id, scores)
        return scores

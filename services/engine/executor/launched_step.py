"""A step of the torch executor between its launch and its result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.engine.executor.batch import StepBatch
from services.engine.executor.errors import NonFiniteLogitsError
from services.engine.executor.logprobs import SampledScoring
from services.engine.executor.sampler import Samples
from services.engine.executor.torch_logprobs import LogprobsOnTheWay
from services.engine.executor.truncation import DrawTruncated
from services.engine.executor.uploads import Uploads
from services.engine.plan import SamplingJob, States, StepPlan, StepResult, TokenLogprobs


class LaunchedStep:
    """What it samples is on the device, and on its way from there."""

    def __init__(self, plan: StepPlan, sampled_ids: Sequence[int], uploads: Uploads) -> None:
        """sampled_ids: the sequence id of each row of logits that is sampled."""
        self.prompt_logprobs: dict[int, TokenLogprobs] = {}
        self.states: dict[int, States] = {}
        self._plan = plan
        self._sampled_ids = sampled_ids
        self._uploads = uploads
        self._samples: Samples | None = None
        self._logprobs: LogprobsOnTheWay | None = None
        self._scoring = SampledScoring.of(plan.sequences, sampled_ids)

    def sample(self, logits: Tensor, jobs: Sequence[SamplingJob], draw: DrawTruncated) -> None:
        """Launches the choice of tokens and their log-probabilities. logits: [len(jobs), vocab_size]."""
        self._samples = samples = Samples.launch(logits, jobs, self._uploads, draw)
        if self._scoring is not None:
            rows = self._uploads(self._scoring.rows, torch.int64)
            self._logprobs = LogprobsOnTheWay.launch(logits[rows], samples.token_ids[rows], self._scoring.num_top)

    def fill_in(self, batch: StepBatch) -> None:
        """Puts sampled tokens where the next step's batch has pending ones."""
        assert self._samples is not None, "a token is pending that nobody samples"
        row_of = {sequence_id: row for row, sequence_id in enumerate(self._sampled_ids)}
        rows = batch.uploads([row for row, _ in batch.pending], torch.int64)
        sampled = batch.uploads([row_of[sequence_id] for _, sequence_id in batch.pending], torch.int64)
        batch.token_ids.index_copy_(0, rows, self._samples.token_ids[sampled])

    def result(self) -> StepResult:
        """Waits for the step. Raises BrokenSequencesError."""
        result = StepResult(self._plan.number, {}, {}, self.prompt_logprobs, self.states)
        if self._samples is not None:
            try:
                token_ids = self._samples.read()
            except NonFiniteLogitsError as error:
                raise error.of_sequences(self._sampled_ids) from error
            result.add_tokens(self._sampled_ids, token_ids)
        if self._logprobs is not None and self._scoring is not None:
            result.logprobs = self._scoring.deal_out(self._logprobs.read())
        return result

"""Sampling in C++: a step's sampling jobs as `postroad_native.sample` takes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import postroad_native

from services.engine.executor.errors import NonFiniteLogitsError
from services.engine.executor.uniform import uniform
from services.engine.plan import SamplingJob


def sample(logits: Any, jobs: Sequence[SamplingJob], threads: int) -> list[int]:
    """Chooses one token per row, by the rules of `sampler.sample`.

    logits: a float32 buffer [len(jobs), vocab_size], left as it is.
    A row's token depends on its logits and its job alone. Raises NonFiniteLogitsError.
    """
    rows = [_row(job) for job in jobs]
    edits = [_edit(row, job) for row, job in enumerate(jobs) if job.edits_logits]
    tokens: list[int] = postroad_native.sample(logits, rows, edits, threads)
    if min(tokens, default=0) < 0:
        raise NonFiniteLogitsError([row for row, token in enumerate(tokens) if token < 0])
    return tokens


def _row(job: SamplingJob) -> tuple[float, int, float, float, float]:
    params = job.params
    drawn = uniform(params.seed, len(job.output_ids)) if params.temperature > 0.0 else 0.0
    return params.temperature, params.top_k, params.top_p, params.min_p, drawn


def _edit(row: int, job: SamplingJob) -> Any:
    params = job.params
    return postroad_native.RowEdit(
        row,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        prompt_ids=_ids(job.prompt_ids if params.repetition_penalty != 1.0 else ()),
        output_ids=_ids(job.output_ids if params.has_penalties else ()),
        bias_ids=_ids(params.logit_bias),
        bias_values=np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias)),
        forbidden_ids=_ids(job.forbidden_ids),
        allowed=job.mask.words() if job.mask is not None else None,
    )


def _ids(ids: Collection[int]) -> npt.NDArray[np.int32]:
    return np.fromiter(ids, np.int32, len(ids))

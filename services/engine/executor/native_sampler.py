"""Sampling in C++: a step's sampling jobs as the arrays that `postroad_native.sample` takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import postroad_native

from services.engine.executor.errors import NonFiniteLogitsError
from services.engine.executor.uniform import uniform
from services.engine.plan import SamplingJob


def sample(logits: npt.NDArray[np.float32], jobs: Sequence[SamplingJob], threads: int) -> list[int]:
    """Chooses one token per row, by the rules of `sampler.sample`. logits: [len(jobs), vocab_size], left as they are.

    A row's token depends on its logits and its job alone. Raises NonFiniteLogitsError.
    """
    params = [job.params for job in jobs]
    vocab_size = logits.shape[1]
    tokens = postroad_native.sample(
        logits,
        temperatures=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([min(p.top_k, vocab_size) for p in params], np.int32),
        top_p=np.array([p.top_p for p in params], np.float64),
        min_p=np.array([p.min_p for p in params], np.float64),
        uniforms=np.array([_uniform(job) for job in jobs], np.float64),
        edits=[_edit(row, job) for row, job in enumerate(jobs) if job.edits_logits],
        threads=threads,
    )
    chosen: list[int] = tokens.tolist()
    if min(chosen) < 0:
        raise NonFiniteLogitsError([row for row, token in enumerate(chosen) if token < 0])
    return chosen


def _uniform(job: SamplingJob) -> float:
    return uniform(job.params.seed, len(job.output_ids)) if job.params.temperature > 0.0 else 0.0


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
